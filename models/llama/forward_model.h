#pragma once

#include <functional>
#include <memory>

#include "models/llama/llama_model.h"

namespace ottava {

/// A model with its weights on one rank, which runs forward only.
class ForwardModel {
 public:
  struct Options {
    LlamaConfig model;
    DType compute = DType::bf16;
    int64_t sequence = 2048;  ///< longest
  };
  ForwardModel(Options options, Device device);

  /// Sees the plan before memory is taken, and throws if it is too large.
  using Allow = std::function<void(const MemoryPlan& plan)>;

  /// Plans and takes memory for the weights, for what `build` takes from the arena, and for the phases that
  /// `run` goes through. Both are called on `meta`, twice; then `allow` and, on the device, `build` again.
  void take_memory(const std::function<void(Arena& arena)>& build,
                   const std::function<void(const StepContext& context)>& run, const Allow& allow);

  const LlamaModel& model() const { return *model_; }
  /// To be filled by the caller, which then calls refresh_compute_copies().
  Fsdp& parameters() { return *parameters_; }
  Stream& stream() { return stream_; }
  /// The context of a pass on the device.
  StepContext context() { return context_of(*arena_, stream_); }

 private:
  void build_model(Arena& arena, Stream& stream);
  StepContext context_of(Arena& arena, Stream& stream);

  Options options_;
  Stream stream_;
  RankGroups ranks_;
  TensorParallelGroup alone_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Fsdp> parameters_;
  std::unique_ptr<LlamaModel> model_;
};

}  // namespace ottava
