#pragma once

#include <span>

#include "apps/step/step_io.h"
#include "models/llama/forward_model.h"

namespace ottava {

/// A model on one rank that is asked for the losses of tokens but not trained.
class Evaluator {
 public:
  struct Options {
    LlamaConfig model;
    DType compute = DType::bf16;
    int64_t batch = 1, sequence = 2048;  ///< of a pass
  };
  /// Plans and takes memory.
  Evaluator(Options options, Device device, const ForwardModel::Allow& allow);

  /// To be filled by the caller, which then calls refresh_compute_copies().
  Fsdp& parameters() { return model_.parameters(); }
  Stream& stream() { return model_.stream(); }

  /// out [batch * sequence] = the losses of tokens, whose documents do not see each other; 0 where they do
  /// not count.
  void losses(const HostTokens& tokens, std::span<float> out);

 private:
  void build(Arena& arena);
  void run(const StepContext& context);

  Options options_;
  ForwardModel model_;
  Tensor tokens_, targets_, document_start_, positions_, loss_sum_, losses_;
};

}  // namespace ottava
