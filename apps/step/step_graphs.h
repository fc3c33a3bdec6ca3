#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "apps/config/training_config.h"
#include "core/cuda/graph.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// The parts of a training step. Micro-batches at the same place in a step put the same work on the device:
/// the first overwrites gradients, later ones add to them, the last also completes the sums over ranks.
enum class StepPart : uint8_t { only, first, middle, last, update };
std::string_view name_of(StepPart part);

/// The parts of a step as CUDA graphs. The first step runs as it is (libraries make plans and connections),
/// the second is recorded part by part and launched, later ones are only launched. A launch runs none of the
/// step's host code: the arena hands out nothing, and FSDP's state stays as the end of a step leaves it,
/// which is where the next one begins. That is safe because a recording starts and ends in that state, and
/// every address in it is the one that the plan gives for that place. What the host has to do in every step
/// (uploads, refreshing at the beginning of a step, dropping stale weights) lies outside the parts.
///
/// With FP8 recipe delayed, steps whose amax history fills have other operations than those whose history is
/// full: where one follows the other, graphs are dropped and all of this begins anew.
///
/// All middle micro-batches share the graph of the second one. Nothing that one of them allocates survives
/// into the next, so the addresses of any of them serve all.
class StepGraphs {
 public:
  /// Uses graphs from the next step on. `world` is told of launches, so that a rank that hangs in one can be
  /// named.
  void enable(Communicator& world) { world_ = &world; }
  bool is_enabled() const { return world_ != nullptr; }

  /// step_by_step: the step runs without graphs, because its operations are timed.
  enum class Pace : uint8_t { launched, step_by_step };
  /// Whether the amax history is full that the step takes its scales from; also where there is none.
  enum class Phase : uint8_t { filling, full };
  /// To be called before the first part of every step.
  void begin_step(Pace pace, Phase phase = Phase::full);
  /// `body` puts the part's work on the stream. It is not called if the part is launched as a graph. Throws
  /// DeviceError if the part cannot be recorded, and whatever `body` throws.
  void run(StepPart part, Stream& stream, const std::function<void()>& body);
  /// Nodes of all parts, once recorded.
  size_t nodes() const;

 private:
  enum class Mode : uint8_t { plain, record, launch };
  struct Part {
    cuda::Graph graph;
    int64_t calls = 0;  ///< collectives
  };
  Communicator* world_ = nullptr;
  Mode mode_ = Mode::plain;
  Phase phase_ = Phase::full;
  int64_t plain_steps_ = 0;  ///< of this phase
  std::array<Part, 5> parts_;
  bool is_recorded_ = false;
};

/// Whether steps run as graphs here, and the reason, for people: "on: ...", "off: ...".
struct GraphUse {
  bool on = false;
  std::string reason;
};
/// What of the steps bears on it.
struct StepTraits {
  bool has_stages = false;          ///< the rank belongs to a pipeline
  int64_t amax_history_length = 0;  ///< 0: no product has recipe delayed
  /// By what ranks exchange tensors through host memory; empty: they do not.
  std::string_view host_transport = {};
};
/// Throws ConfigError if the wish is `on` and that is not possible.
GraphUse decide_graphs(TrainingConfig::CudaGraphs wish, Device device, const StepTraits& steps);
/// The same for ranks that exchange tensors by `world`.
GraphUse decide_graphs(TrainingConfig::CudaGraphs wish, Device device, const Communicator& world,
                       StepTraits steps = {});

}  // namespace ottava
