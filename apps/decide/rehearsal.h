#pragma once

#include <string_view>

#include "apps/config/experiment.h"
#include "apps/step/step_plan.h"
#include "core/stream.h"

namespace ottava {

/// Decisions about matrix products on a GPU: "gemm library", and "gemm <problem>" with an algorithm of that
/// library.
constexpr std::string_view kGemmDecisions = "gemm ";

/// Runs a step and, if configured, a validation and a token of the prompts on a GPU before the first real
/// one, in memory of its own that is filled with numbers like those of training. After that everything is set
/// up: NCCL's connections, kernels, and cuBLASLt's plans, which are latched. `stream` is the one that will
/// train.
///
/// Algorithms of products come from experiment.decisions, then from those that an earlier run kept
/// (apps/decide/gemm_cache.h; unless decisions are made afresh). The others are measured, up to eight
/// candidates each, and kept. All ranks' products are added to experiment.decisions, the same on every rank;
/// ranks that have the same product take the algorithm of the first of them. Every rank makes the call.
/// Throws ConfigError, on all ranks, for decisions that were made with another library or GPU.
void rehearse(Experiment& experiment, const StepPlan& plan, Stream& stream, RankGroups& ranks);

}  // namespace ottava
