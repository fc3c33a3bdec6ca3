#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/decide/memory_need.h"

namespace ottava {

/// Where decisions come from.
enum class DecisionSource {
  checkpoint,  ///< the newest checkpoint's, where it has some for this layout; else they are made
  afresh,      ///< made, whatever a checkpoint says (`--redecide`)
};

/// A decision that depends on what is known only where a run starts: free memory, or a measurement.
struct OpenDecision {
  struct Outcome {
    std::string value;
    TrainingShape shape;
  };
  std::string name;               ///< key of the configuration
  std::string by;                 ///< what decides, for people
  std::vector<Outcome> outcomes;  ///< all, or the extremes; the first is experiment.shape
};
/// The decisions of settle_decisions() that change a step's memory, compute or traffic; not those that only
/// choose kernels.
std::vector<OpenDecision> open_decisions(const Experiment& experiment);

/// What a step of this shape takes, as memory_needs() gives it.
using StepNeeds = std::function<std::vector<MemoryNeed>(const TrainingShape&)>;

/// `experiment` with everything that memory decides in settle_decisions(), by the same rule, for a machine
/// that need not be this one; what was decided is added to experiment.decisions.
Experiment decided_by_memory(Experiment experiment, const StepNeeds& needs);

/// `experiment` with everything that memory decides as the memory that is free now would decide it. Records
/// nothing. Every rank makes the call.
Experiment as_memory_allows(Experiment experiment, RankGroups& ranks, Device device);

/// Settles what the configuration leaves to be decided, and writes it into `experiment`: the shape of the
/// step and experiment.decisions. Rank 0 reads or measures, and all ranks get that; what memory decides, all
/// ranks conclude from the needs of all. They compare the results. Every rank makes the call. Throws
/// ConfigError, on all ranks, if a checkpoint's decision cannot be followed here.
///
/// What is decided, in order:
///
/// Peaks of a GPU that is in no table: apps/decide/device_peaks.h.
///
/// cpu.bf16_matmul, cpu.bf16_attention: apps/decide/cpu_products.h.
///
/// attention.backend: apps/decide/attention_choice.h.
///
/// quantize.linear.float8.auto: FP8 for the shapes for which measure_float8() finds it faster, or for which
/// rank 0's file auto_decisions says so. The step that is timed is that of as_memory_allows(), with FP8 where
/// it wins (measure_as_decided()).
///
/// parallelism.enable_async_tensor_parallel: apps/decide/tensor_parallel_overlap.h.
///
/// parallelism.fsdp_reduce_every_microbatch: once per step if all ranks have the memory for whole gradients,
/// since that is less traffic; else after every micro-batch. With activation_checkpoint.mode auto they need
/// only fit where norms and activations are recomputed, which costs less time than the traffic.
///
/// activation_checkpoint.mode auto, after that and at every start, beside what a checkpoint's run decided
/// about the others: on each rank of a pipeline the first mode for which the ranks in its place have the
/// memory, or of recompute_choices() before that mode the first that fits too
/// (apps/decide/recompute_by_rank.h).
///
/// quantize.linear.float8.keep_weight_codes, after that: codes of weights that are gathered in the compute
/// type are kept through the step if all ranks have the memory; else they are made again after every gather.
/// The codes are the same either way.
///
/// model.loss_chunk_tokens, on a GPU, after these: the most of 4096, 2048 and 1024 tokens for whose
/// logits all ranks have the memory. The output layer's gradient is read and written once per chunk: 1024
/// tokens add a fifth to the time of its products, 4096 a twentieth. For the memory that
/// they save, 1024 tokens cost more time than recomputed norms and activations. So mode auto first settles
/// the most tokens for which all ranks have the memory where all blocks recompute these, unless codes are to
/// be decided, which save more time for their memory.
void settle_decisions(Experiment& experiment, RankGroups& ranks, Device device, DecisionSource source);

}  // namespace ottava
