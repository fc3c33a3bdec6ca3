#include "apps/step/step_graphs.h"

#include <utility>

#include "core/error.h"
#include "core/sum_of.h"
#include "core/text/counted.h"

namespace ottava {

std::string_view name_of(StepPart part) {
  constexpr std::string_view kNames[] = {"the micro-batch", "the first micro-batch", "a middle micro-batch",
                                         "the last micro-batch", "the update"};
  return kNames[static_cast<size_t>(part)];
}

namespace {

cuda::Graph record(StepPart part, Stream& stream, const std::function<void()>& body) {
  try {
    return cuda::Graph::record(stream, body);
  } catch (const DeviceError& error) {
    fail<DeviceError>(
        "graphs",
        "{} cannot be recorded as a CUDA graph: {}; set training.cuda_graphs to off to train without",
        name_of(part), error.what());
  }
}

}  // namespace

void StepGraphs::begin_step(Pace pace, Phase phase) {
  if (std::exchange(phase_, phase) != phase) {
    parts_ = {};
    mode_ = Mode::plain;
    plain_steps_ = 0;
    is_recorded_ = false;
  }
  // The step after the recording one finds all parts there.
  if (mode_ == Mode::record) is_recorded_ = true;
  if (!world_ || pace == Pace::step_by_step || plain_steps_ == 0) {
    mode_ = Mode::plain;
    ++plain_steps_;
  } else {
    mode_ = is_recorded_ ? Mode::launch : Mode::record;
  }
}

void StepGraphs::run(StepPart part, Stream& stream, const std::function<void()>& body) {
  if (mode_ == Mode::plain) return body();
  Part& p = parts_[static_cast<size_t>(part)];
  if (mode_ == Mode::record) {
    // Middle micro-batches after the second are recorded only because the host's part of the step must run.
    const int64_t before = world_->stats().calls();
    cuda::Graph graph = record(part, stream, body);
    const int64_t calls = world_->stats().calls() - before;
    // With several ranks some nodes are the collective library's own, and their number is up to it.
    const bool differs = calls != p.calls || (world_->size() == 1 && graph.nodes() != p.graph.nodes());
    if (!p.graph.is_recorded()) {
      p = {std::move(graph), calls};
    } else if (differs) {
      fail("graphs",
           "{} was recorded as {} operations with {} but now has {} with {}: steps that differ between "
           "micro-batches cannot be replayed; set training.cuda_graphs to off",
           name_of(part), p.graph.nodes(), counted(p.calls, "collective"), graph.nodes(),
           counted(calls, "collective"));
    }
  }
  p.graph.launch(stream);
  world_->graph_launched(stream, name_of(part), p.calls);
}

size_t StepGraphs::nodes() const {
  return sum_of(parts_, [](const Part& p) { return p.graph.nodes(); });
}

GraphUse decide_graphs(TrainingConfig::CudaGraphs wish, Device device, const Communicator& world,
                       StepTraits steps) {
  if (!world.can_be_recorded()) steps.host_transport = world.transport();
  return decide_graphs(wish, device, steps);
}

GraphUse decide_graphs(TrainingConfig::CudaGraphs wish, Device device, const StepTraits& steps) {
  using enum TrainingConfig::CudaGraphs;
  if (wish == off) return {false, "off: training.cuda_graphs is off"};
  std::string obstacle;
  if (!device.is_gpu()) {
    obstacle = fmt::format("the device is {}", to_string(device));
  } else if (!steps.host_transport.empty()) {
    obstacle = fmt::format("ranks exchange tensors through host memory ({}), which a graph cannot contain",
                           steps.host_transport);
  } else if (steps.has_stages) {
    obstacle = "pipeline parallelism interleaves micro-batches, so that no part of a step repeats";
  } else {
    std::string reason = "on: step 1 runs as it is, step 2 is recorded, later steps are launched";
    if (steps.amax_history_length > 0) {
      reason += fmt::format("; the same again from the first step whose amax history, of {}, is full",
                            counted(steps.amax_history_length, "step"));
    }
    return {true, std::move(reason)};
  }
  if (wish == on) fail<ConfigError>("training", "cuda_graphs is on, but {}: set it to auto or off", obstacle);
  return {false, "off: " + obstacle};
}

}  // namespace ottava
