#pragma once

#include <string_view>

#include "apps/config/experiment.h"
#include "apps/train/step_plan.h"
#include "core/stream.h"

namespace ottava {

/// Decisions about matrix products on a GPU: "gemm library", and "gemm <problem>" with an algorithm of that
/// library.
constexpr std::string_view kGemmDecisions = "gemm ";

/// A step and, if configured, a validation on a GPU before the first real one, on memory of its own that is
/// full of numbers like those of training, after which nothing is left to be set up: NCCL's connections,
/// kernels, and cuBLASLt's plans, which are latched. `stream` is the one that will train.
///
/// Algorithms of products: those among experiment.decisions are followed, then those that an earlier run kept
/// (apps/decide/gemm_cache.h; not where decisions are made afresh); the others are measured, eight each, and
/// kept. Rank 0's hold for all ranks, and experiment.decisions then has them. Every rank makes the call.
/// Throws ConfigError, on all ranks, for decisions that were made with another library or GPU.
void rehearse(Experiment& experiment, const StepPlan& plan, Stream& stream, RankGroups& ranks);

}  // namespace ottava
