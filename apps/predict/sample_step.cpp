#include "apps/predict/sample_step.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "apps/predict/full_ranks.h"
#include "core/error.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

constexpr int64_t kRecorded = 3;  // micro-batches: the first, the second and the last

/// Writes the order of more micro-batches than were recorded.
///
/// Those between the second and the last are as the second. Only where a reduction ends in the next
/// micro-batch (FsdpOptions::reductions_cross) do they begin as the last: what the second has to finish is
/// the first sum of its shard, what they and the last have is added to one. All of them go on alike from the
/// reduction that is issued next, when nothing else is in flight.
class Repeater {
 public:
  explicit Repeater(const RecordedOrder& recorded) : recorded_(recorded) {
    out_.labels = recorded.labels;
    place_.resize(recorded.transfers.size());
  }
  /// With so many micro-batches more.
  RecordedOrder repeat(int64_t more) && {
    const std::vector<size_t>& parts = recorded_.parts;
    const size_t second = parts[1], last = parts[2], goes_on = after_crossing(1),
                 last_goes_on = after_crossing(2);
    copy(0, parts[0]);
    copy_part(parts[0], second);
    copy_part(second, last);
    for (int64_t i = 0; i < more; ++i) {
      copy_part(last, last_goes_on);
      copy(goes_on, last);
    }
    copy_part(last, parts[3]);
    copy_part(parts[3], recorded_.events.size());
    return std::move(out_);
  }

 private:
  using Kind = RecordedEvent::Kind;

  void copy_part(size_t begin, size_t end) {
    out_.parts.push_back(out_.events.size());
    copy(begin, end);
  }
  void copy(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      RecordedEvent event = recorded_.events[i];
      const size_t index = event.index;
      if (event.kind == Kind::issue) {
        place_[index] = static_cast<int32_t>(out_.transfers.size());
        out_.transfers.push_back(recorded_.transfers[index]);
      }
      if (event.kind != Kind::operation) event.index = place_[index];
      out_.events.push_back(event);
    }
  }
  // The first issue after a wait for what another part issued; if there is none, the beginning of the part.
  size_t after_crossing(size_t part) const {
    const size_t begin = recorded_.parts[part];
    std::set<int32_t> in_flight;
    int32_t first = std::numeric_limits<int32_t>::max();  // of its own transfers
    bool has_crossed = false;
    for (size_t i = begin; i < recorded_.parts[part + 1]; ++i) {
      const auto& [kind, label, index] = recorded_.events[i];
      if (kind == Kind::wait) {
        in_flight.erase(index);
        has_crossed |= index < first;
      }
      if (kind != Kind::issue) continue;
      first = std::min(first, index);
      if (!has_crossed) {
        in_flight.insert(index);
      } else if (in_flight.empty()) {
        return i;
      } else {
        fail("plan", "{} is in flight where micro-batches go on alike, expected nothing",
             counted(std::ssize(in_flight), "transfer"));
      }
    }
    return begin;
  }

  const RecordedOrder& recorded_;
  RecordedOrder out_;
  std::vector<int32_t> place_;  ///< of a recorded transfer's newest copy
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
    const size_t i = event.index;
    if (event.kind == RecordedEvent::Kind::issue) {
      const RecordedTransfer& transfer = plan.order.transfers[i];
      for (const RecordedTransfer::Call& call : transfer.calls)
        plan.traffic.record(
            {collective_of(call.collective), transfer.axis, call.label, call.payload_bytes, call.sent_bytes});
    }
    if (event.kind != RecordedEvent::Kind::operation) continue;
    RecordedOperation& o = plan.operations[i];
    const auto [known, is_new] = index.try_emplace({event.label, o.op, o.precision}, plan.costs.size());
    if (is_new) plan.costs.push_back({plan.order.labels[event.label], o.op, o.precision});
    CostRecorder::Total& total = plan.costs[known->second];
    ++o.calls, ++total.calls;
    total.flops += o.flops;
    total.bytes += o.bytes;
  }
}

bool is_sampled(const TrainingShape& shape) {
  return shape.micro_batches > kRecorded && !shape.pipeline.is_on();
}

// With the memory of all micro-batches, and the order of those that are recorded.
StepPlan record_few(const TrainingShape& shape, Device target, const Mesh& mesh, int rank, Packing packing) {
  if (!is_sampled(shape)) return record_rank(shape, target, mesh, rank, packing);
  TrainingShape few = shape;
  few.micro_batches = kRecorded;
  StepPlan plan = record_rank(few, target, mesh, rank, packing);
  plan.memory.resize_persistent("loss sums", shape.micro_batches * sizeof(float));
  return plan;
}

}  // namespace

StepPlan sample_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh, Packing packing) {
  StepPlan plan = record_few(shape, target, mesh, 0, packing);
  if (!is_sampled(shape)) return plan;
  plan.order = Repeater(plan.order).repeat(shape.micro_batches - kRecorded);
  count(plan);
  return plan;
}

namespace {

StepPlan first_of_role(const TrainingShape& shape, Device target, const Mesh& mesh, int role,
                       Packing packing) {
  return shape.pipeline.is_on() ? record_rank(shape, target, mesh, first_rank_of_role(mesh, role), packing)
                                : sample_first_rank(shape, target, mesh, packing);
}

}  // namespace

std::vector<StepPlan> sample_first_of_roles(const TrainingShape& shape, Device target, const Mesh& mesh) {
  std::vector<StepPlan> out;
  for (int role = 0; role < mesh.size(MeshAxis::pp); ++role)
    out.push_back(first_of_role(shape, target, mesh, role, Packing::full));
  return out;
}

std::vector<StepPlan> sample_roles(const TrainingShape& shape, Device target, const Mesh& mesh) {
  return RoleRecordings(target, mesh).of(shape);
}

const std::vector<StepPlan>& RoleRecordings::of(const TrainingShape& shape) {
  const bool is_pipeline = shape.pipeline.is_on();
  const int roles = is_pipeline ? mesh_.size(MeshAxis::pp) : 1;
  for (int role = 0; role < roles; ++role) {
    Key key{shape.parameters.reduce_every_micro_batch, shape.parameters.keeps_float8_codes,
            shape.model_options.loss_chunk_rows, shape.model_options.recompute};
    if (is_pipeline) {
      const std::vector<bool> units = shape.pipeline.units_of(role);  // the embedding comes first
      for (size_t block = 0; block < key.recompute.size(); ++block)
        if (!units[block + 1]) key.recompute[block] = Recompute::nothing;
    }
    if (role < std::ssize(keys_) && keys_[role] == key) continue;
    StepPlan plan = record(shape, role);
    if (role == std::ssize(keys_)) keys_.emplace_back(), roles_.emplace_back();
    keys_[role] = std::move(key);
    roles_[role] = std::move(plan);
  }
  return roles_;
}

StepPlan RoleRecordings::record(const TrainingShape& shape, int role) const {
  StepPlan plan = first_of_role(shape, target_, mesh_, role, packing_);
  for (const int rank : ranks_perhaps_fuller(shape, target_, mesh_, role)) {
    StepPlan other = record_few(shape, target_, mesh_, rank, packing_);
    if (other.memory.total_bytes() <= plan.memory.total_bytes()) continue;
    plan.memory = std::move(other.memory);
    plan.matmul_workspace_bytes = other.matmul_workspace_bytes;
    plan.rank = rank;
  }
  return plan;
}

ShardCoordinates coordinates_of_role(const Experiment& e, int role) {
  ShardCoordinates at = e.mesh.shard_coordinates(first_rank_of_role(e.mesh, role));
  at.units = e.shape.pipeline.units_of(role);
  return at;
}

}  // namespace ottava
