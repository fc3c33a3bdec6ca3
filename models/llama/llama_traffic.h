#pragma once

#include "models/llama/llama_model.h"
#include "parallel/sharding/traffic.h"

namespace ottava {

/// How often LlamaModel gathers each unit for one micro-batch: blocks for forward and for backward, the
/// embedding for its forward (its backward needs no weights) and, tied, for the head, the head once.
std::vector<UnitGatherCounts> llama_gathers(const LlamaConfig& config,
                                            const std::vector<Recompute>& recompute);

/// What one rank works on in a step, for the formula below.
struct LlamaStep {
  int64_t batch = 1, sequence = 2048;  ///< of a micro-batch
  DType compute = DType::bf16;
  LlamaModelOptions options;
  fp8::Policy float8_policy;    ///< empty without FP8
  bool gathers_float8 = false;  ///< activations too (quantize.linear.float8.enable_tp_float8_all_gather)
};

/// Everything this rank sends in a training step: its parameters' traffic (parallel/sharding/traffic.h) and,
/// with t tensor-parallel ranks, that of activations. With A = N C elements of the compute type per
/// micro-batch of N tokens, each moved by (t-1)/t:
///
///     gathers  (6 L + 2 L_recomputed + 2) A   forward wqkv, w13; backward w2, w13, wo, wqkv; head;
///                                             embedding's backward
///     sums     (4 L +   L_recomputed + 2) A   forward wo, w2; backward w13, wqkv; embedding; head's backward
///     FP8      gathers of x again for a weight gradient that keeps bytes with one scale: A bytes.
///              With gathers_float8 also those of forward (scales per row or 1x128 along) and of dy where
///              both its products are FP8 with one scale; one u32 all-reduce for each scale per tensor.
///              Recipe delayed: the amaxes of all operands, once, over the world
///     loss     3 all-reduces of N f32, in chunks; without loss parallel a gather of the logits, N V f32
CommStats llama_traffic(const LlamaConfig& config, const LlamaStep& step, const FsdpOptions& parameters,
                        const TrafficLayout& layout);

}  // namespace ottava
