#include "apps/predict/sample_step.h"

#include <map>
#include <tuple>

#include "core/error.h"

namespace ottava {
namespace {

// Micro-batches: the first, one between that stands for others, the last. Where a reduction ends in the next
// micro-batch, the second has another one to finish than those after it.
int64_t recorded_micro_batches(const TrainingShape& shape) {
  return shape.parameters.reductions_cross ? 4 : 3;
}

/// Writes the order of more micro-batches than were recorded.
class Repeater {
 public:
  explicit Repeater(const RecordedOrder& recorded) : recorded_(recorded) {
    out_.labels = recorded.labels;
    place_.resize(recorded.transfers.size());
  }
  /// With the last but one of the recorded micro-batches so many times.
  RecordedOrder repeat(int64_t times) && {
    const std::vector<size_t>& parts = recorded_.parts;
    const size_t update = parts.size() - 1, middle = update - 2;
    copy(0, parts[0]);
    for (size_t part = 0; part < middle; ++part) copy_part(part);
    for (int64_t i = 0; i < times; ++i) {
      copy_part(middle);
      // What it waits for of the one before it is by now its own.
      if (i == 0) follow(parts[middle - 1], parts[middle], parts[middle + 1]);
    }
    copy_part(update - 1);
    copy_part(update);
    return std::move(out_);
  }

 private:
  size_t end_of(size_t part) const {
    return part + 1 < recorded_.parts.size() ? recorded_.parts[part + 1] : recorded_.events.size();
  }
  void copy_part(size_t part) {
    out_.parts.push_back(out_.events.size());
    copy(recorded_.parts[part], end_of(part));
  }
  void copy(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      RecordedEvent event = recorded_.events[i];
      const auto index = static_cast<size_t>(event.index);
      if (event.kind == RecordedEvent::Kind::issue) {
        place_[index] = static_cast<int32_t>(out_.transfers.size());
        out_.transfers.push_back(recorded_.transfers[index]);
      }
      if (event.kind != RecordedEvent::Kind::operation) event.index = place_[waited_for(index)];
      out_.events.push_back(event);
    }
  }
  // Transfers of two parts that end alike, matched from their ends.
  void follow(size_t first, size_t second, size_t end) {
    auto issued = [&](size_t from, size_t to) {
      std::vector<size_t> transfers;
      for (size_t i = from; i < to; ++i)
        if (recorded_.events[i].kind == RecordedEvent::Kind::issue)
          transfers.push_back(static_cast<size_t>(recorded_.events[i].index));
      return transfers;
    };
    const std::vector<size_t> before = issued(first, second), after = issued(second, end);
    for (size_t i = 1; i <= std::min(before.size(), after.size()); ++i)
      stands_for_[before[before.size() - i]] = after[after.size() - i];
  }
  size_t waited_for(size_t transfer) const {
    const auto other = stands_for_.find(transfer);
    return other == stands_for_.end() ? transfer : other->second;
  }

  const RecordedOrder& recorded_;
  RecordedOrder out_;
  std::vector<int32_t> place_;  ///< of a recorded transfer's newest copy
  std::map<size_t, size_t> stands_for_;
};

Collective collective_of(std::string_view name) {
  for (auto c = Collective::all_reduce; c <= Collective::graph;
       c = static_cast<Collective>(static_cast<int>(c) + 1))
    if (name_of(c) == name) return c;
  fail("plan", "there is no collective '{}'", name);
}

// Sums over the order, which is now longer.
void count(StepPlan& plan) {
  for (RecordedOperation& o : plan.operations) o.calls = 0;
  plan.costs.clear();
  plan.traffic.reset();
  std::map<std::tuple<int32_t, std::string_view, Precision>, size_t> index;
  for (const RecordedEvent& event : plan.order.events) {
    const auto i = static_cast<size_t>(event.index);
    if (event.kind == RecordedEvent::Kind::issue) {
      const RecordedTransfer& transfer = plan.order.transfers[i];
      for (const RecordedTransfer::Call& call : transfer.calls)
        plan.traffic.record(
            {collective_of(call.collective), transfer.axis, call.label, call.payload_bytes, call.sent_bytes});
    }
    if (event.kind != RecordedEvent::Kind::operation) continue;
    RecordedOperation& o = plan.operations[i];
    const auto [known, is_new] = index.try_emplace({event.label, o.op, o.precision}, plan.costs.size());
    if (is_new)
      plan.costs.push_back({plan.order.labels[static_cast<size_t>(event.label)], o.op, o.precision});
    CostRecorder::Total& total = plan.costs[known->second];
    ++o.calls, ++total.calls;
    total.flops += o.flops;
    total.bytes += o.bytes;
  }
}

}  // namespace

StepPlan sample_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh) {
  const int64_t recorded = recorded_micro_batches(shape);
  if (shape.micro_batches <= recorded || shape.pipeline.is_on())
    return record_first_rank(shape, target, mesh);
  TrainingShape few = shape;
  few.micro_batches = recorded;
  StepPlan plan = record_first_rank(few, target, mesh);
  plan.memory.resize_persistent("loss sums", shape.micro_batches * static_cast<int64_t>(sizeof(float)));
  plan.order = Repeater(plan.order).repeat(shape.micro_batches - recorded + 1);
  count(plan);
  return plan;
}

std::vector<StepPlan> sample_roles(const TrainingShape& shape, Device target, const Mesh& mesh) {
  std::vector<StepPlan> roles;
  if (!shape.pipeline.is_on()) roles.push_back(sample_first_rank(shape, target, mesh));
  for (int role = 0; shape.pipeline.is_on() && role < mesh.size(MeshAxis::pp); ++role)
    roles.push_back(record_rank(shape, target, mesh, first_rank_of_role(mesh, role)));
  return roles;
}

}  // namespace ottava
