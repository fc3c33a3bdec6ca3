#include "apps/decide/tensor_parallel_overlap.h"

#include <functional>
#include <map>

#include "apps/decide/operation_times.h"
#include "apps/decide/transfer_calls.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"

namespace ottava {
namespace {

constexpr std::string_view kKey = "parallelism.enable_async_tensor_parallel";
// Bulk stays unless blocks gain more than timings vary.
constexpr double kLeastOverlapGain = 1.02;

constexpr BlockOverlap kAll{Overlap::blocks, Overlap::blocks, Overlap::blocks, Overlap::blocks};

bool is_open(const Experiment& e) {
  return e.config.parallelism.enable_async_tensor_parallel && e.mesh.size(MeshAxis::tp) > 1;
}

std::string decision_name(const BlockLayer& layer) { return fmt::format("{} {}", kKey, layer.name); }

/// One micro-batch of all layers on the first rank of a mesh without a pipeline.
struct RecordedMicroBatch {
  StepPlan plan;
  std::vector<StepProfile::Span> spans;  ///< of plan.order's events
};
RecordedMicroBatch micro_batch(const Experiment& e, Device device, const BlockOverlap& overlap) {
  TrainingShape shape = e.shape;
  shape.model_options.overlap = overlap;
  shape.pipeline = {};
  shape.micro_batches = 1;
  const MeshDegrees degrees{.dp_replicate = e.mesh.size(MeshAxis::dp_replicate),
                            .dp_shard = e.mesh.size(MeshAxis::dp_shard),
                            .cp = e.mesh.size(MeshAxis::cp),
                            .tp = e.mesh.size(MeshAxis::tp)};
  const Mesh mesh(degrees, e.mesh.world_size() / e.mesh.size(MeshAxis::pp));
  const int size = mesh.world_size();
  RankGroups ranks(make_dry_run_world(0, size), make_dry_run_world(0, size), mesh);
  return {record_step(shape, device, ranks), record_spans(shape, device, ranks)};
}

/// What a middle block asks for in one of its layers, since policies treat the first block and the last
/// apart.
std::vector<RecordedEvent> events_of(const RecordedMicroBatch& step, const BlockLayer& layer,
                                     int64_t blocks) {
  const std::string passes = fmt::format("layers.{} ", blocks / 2);
  std::vector<RecordedEvent> events;
  for (const StepProfile::Span& span : step.spans) {
    if (span.kind != StepProfile::Kind::pass || !span.label.starts_with(passes)) continue;
    for (size_t i = span.first_event; i < span.end_event; ++i) {
      const RecordedEvent& event = step.plan.order.events[i];
      if (step.plan.order.labels[event.label] == layer.label) events.push_back(event);
    }
  }
  return events;
}

/// The operations of these events and their transfers between tensor-parallel ranks, in order, each on
/// memory of its own.
class LayerCalls {
 public:
  LayerCalls(const StepPlan& plan, const std::vector<RecordedEvent>& events, const Stream& stream,
             Communicator& tp, int64_t vocabulary)
      : bench_(stream.device()) {
    int messages = 0;
    for (const RecordedEvent& event : events) {
      const int32_t index = event.index;
      if (event.kind == RecordedEvent::Kind::operation) {
        const RecordedOperation& operation = plan.operations[index];
        if (!operations_.contains(index)) operations_[index] = prepare(operation, bench_, vocabulary);
        calls_.push_back(operations_[index]);
      } else if (const RecordedTransfer& t = plan.order.transfers[index]; t.axis != "tp") {
        continue;
      } else if (event.kind == RecordedEvent::Kind::issue) {
        const int distance = t.calls[0].collective == "send" ? 1 + messages++ % (tp.size() - 1) : 0;
        calls_.push_back([this, index, issue = prepare(t, tp, distance, bench_)](Stream& s) {
          under_way_[index] = issue(s);
        });
      } else {
        calls_.push_back([this, index](Stream& s) { under_way_.at(index).wait(s); });
      }
    }
  }
  LayerCalls(const LayerCalls&) = delete;  // calls refer to it
  LayerCalls& operator=(const LayerCalls&) = delete;

  void enqueue(Stream& stream) {
    for (const auto& call : calls_) call(stream);
  }

 private:
  Workbench bench_;
  std::map<int32_t, std::function<void(Stream&)>> operations_;
  std::map<int32_t, Request> under_way_;
  std::vector<std::function<void(Stream&)>> calls_;
};

Decisions measure(const Experiment& e, RankGroups& ranks, Device device) {
  Stream stream = stream_like_steps(e, device);
  const RecordedMicroBatch blocks = micro_batch(e, device, kAll), bulk = micro_batch(e, device, {});
  Workbench bench(stream.device());
  bench.give_workspace(stream,
                       std::max(blocks.plan.matmul_workspace_bytes, bulk.plan.matmul_workspace_bytes));
  const int64_t vocabulary = e.shape.model.vocab_size / e.mesh.size(MeshAxis::tp);
  Decisions out;
  for (const BlockLayer& layer : kBlockLayers) {
    const auto calls = [&](const RecordedMicroBatch& step) {
      return LayerCalls(step.plan, events_of(step, layer, e.shape.model.layers), stream, *ranks.tp,
                        vocabulary);
    };
    LayerCalls with_blocks = calls(blocks), without = calls(bulk);
    const auto [in_blocks, in_bulk] = best_milliseconds_by_turns(
        stream, [&] { with_blocks.enqueue(stream); }, [&] { without.enqueue(stream); });
    out.entries.push_back(
        {decision_name(layer), in_bulk > kLeastOverlapGain * in_blocks ? "blocks" : "bulk",
         fmt::format("forward and backward of a layer: in blocks {:.3f} ms, in bulk {:.3f} ms", in_blocks,
                     in_bulk)});
  }
  return out;
}

}  // namespace

std::vector<OpenDecision> open_overlap(const Experiment& e) {
  if (!is_open(e)) return {};
  OpenDecision decision{.name = std::string(kKey),
                        .by = "the time of each layer both ways",
                        .outcomes = {{"blocks in every layer", e.shape}, {"blocks in none", e.shape}}};
  decision.outcomes[0].shape.model_options.overlap = kAll;
  decision.outcomes[1].shape.model_options.overlap = {};
  return {decision};
}

void settle_overlap(Experiment& e, RankGroups& ranks, Device device, const Decisions& saved) {
  if (!is_open(e)) return;
  Decisions decided;
  for (const BlockLayer& layer : kBlockLayers)
    if (const Decisions::Entry* before = saved.find(decision_name(layer))) decided.entries.push_back(*before);
  const bool is_saved = decided.entries.size() == kBlockLayers.size();
  if (!is_saved) decided = of_first_rank(measure(e, ranks, device), *ranks.control);
  std::string complaint;
  e.shape.model_options.overlap = {};
  for (size_t i = 0; i < kBlockLayers.size(); ++i) {
    const Decisions::Entry& entry = decided.entries[i];
    if (entry.value != "blocks" && entry.value != "bulk")
      complaint = fmt::format("the checkpoint has {} = '{}', expected blocks or bulk: start with --redecide",
                              entry.name, entry.value);
    if (entry.value == "blocks") e.shape.model_options.overlap.*kBlockLayers[i].overlap = Overlap::blocks;
  }
  refuse_together(*ranks.control, "decisions", complaint);
  for (const Decisions::Entry& entry : decided.entries) {
    e.decisions.entries.push_back(entry);
    log_decision(entry, is_saved);
  }
}

}  // namespace ottava
