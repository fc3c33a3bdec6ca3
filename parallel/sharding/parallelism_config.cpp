#include "parallel/sharding/parallelism_config.h"

#include <algorithm>

#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/error.h"
#include "parallel/pipeline/schedule.h"

namespace ottava {

namespace {

constexpr double kMostSequences = 1 << 30, kMostLayers = 1 << 16;

void declare_pipeline(config::Section& s, ParallelismConfig& c) {
  s.field("pipeline_parallel_schedule", c.pipeline_parallel_schedule,
          "pipeline schedule; with one stage per rank GPipe or 1F1B, with several Interleaved1F1B, "
          "LoopedBFS, InterleavedZeroBubble or ZBVZeroBubble");
  s.field("pipeline_parallel_microbatch_size", c.pipeline_parallel_microbatch_size,
          "micro-batch size in the pipeline; training.local_batch_size must be a multiple of it")
      .range(1, kMostSequences)
      .unit("sequences");
  s.field("pipeline_parallel_layers_per_stage", c.pipeline_parallel_layers_per_stage,
          "layers per stage, including those that embedding and head count as; null: one stage per rank, or "
          "two in schedules for several")
      .range(1, kMostLayers)
      .unit("layers");
  const auto counts_as = [&](const char* key, int64_t& layers, const char* meaning) {
    s.field(key, layers, meaning).range(0, kMostLayers).unit("layers");
  };
  counts_as("pipeline_parallel_first_stage_less_layers", c.pipeline_parallel_first_stage_less_layers,
            "number of layers that the embedding counts as, so that the first stage has that many fewer");
  counts_as("pipeline_parallel_last_stage_less_layers", c.pipeline_parallel_last_stage_less_layers,
            "number of layers that final norm and head count as, so that the last stage has that many fewer");
  s.field("pipeline_parallel_split_points", c.pipeline_parallel_split_points,
          "modules with which the stages after the first begin, such as [layers.8, layers.20]; empty: split "
          "by number of layers");
}

}  // namespace

void declare(config::Section& s, ParallelismConfig& c) {
  s.meaning("how ranks divide the work; the product of all degrees is the number of ranks");
  const auto degree = [&](const char* key, int64_t& ranks, const char* meaning) -> config::Field& {
    return s.field(key, ranks, meaning).range(1, kMostRanks).unit("ranks");
  };
  degree("data_parallel_replicate_degree", c.data_parallel_replicate_degree,
         "number of replicas of the sharded model (HSDP, or DDP if the shard degree is 1)");
  degree("data_parallel_shard_degree", c.data_parallel_shard_degree,
         "ranks among which parameters, gradients and optimizer state are sharded (FSDP); -1: all ranks that "
         "the other degrees leave")
      .or_value(-1);
  degree(
      "context_parallel_degree", c.context_parallel_degree,
      "ranks that share each sequence; each takes two chunks of it (head-tail) and gathers keys and values");
  degree("tensor_parallel_degree", c.tensor_parallel_degree,
         "ranks that share each weight matrix (tensor parallelism, with sequence parallelism for the norms)");
  degree("pipeline_parallel_degree", c.pipeline_parallel_degree,
         "ranks among which the stages of the model are divided");
  declare_pipeline(s, c);
  using Reshard = ParallelismConfig::Reshard;
  s.choice("fsdp_reshard_after_forward", c.fsdp_reshard_after_forward,
           {{"default", Reshard::automatic}, {"always", Reshard::always}, {"never", Reshard::never}},
           "when to free the gathered parameters; always: after each pass that reads them; never: after the "
           "optimizer step; default: as always or, in a pipeline, which refuses always, as never");
  using Reduce = ParallelismConfig::Reduce;
  s.choice(
      "fsdp_reduce_every_microbatch", c.fsdp_reduce_every_microbatch,
      {{"auto", Reduce::automatic}, {"true", Reduce::every_microbatch}, {"false", Reduce::once_per_step}},
      "when to reduce gradients; true: after every micro-batch (less memory); false: once per step (less "
      "communication); auto: once per step if memory suffices");
  s.field("fsdp_prefetch", c.fsdp_prefetch, "number of FSDP units gathered ahead of their use")
      .range(0, 8)
      .unit("units");
  s.field("enable_async_tensor_parallel", c.enable_async_tensor_parallel,
          "overlap tensor parallel communication with matrix products, block by block, in the layers where "
          "measurement shows it to be faster");
  s.field("disable_loss_parallel", c.disable_loss_parallel,
          "gather the logits instead of computing the loss in parts on the tensor parallel ranks");
}

void validate(const ParallelismConfig& c, config::Problems& problems) {
  double ranks = 1;
  for (int64_t degree : {c.data_parallel_replicate_degree, c.data_parallel_shard_degree,
                         c.context_parallel_degree, c.tensor_parallel_degree, c.pipeline_parallel_degree})
    ranks *= static_cast<double>(std::max<int64_t>(degree, 1));
  if (ranks > kMostRanks) {
    problems.add("parallelism.data_parallel_shard_degree",
                 "all degrees together make {:.0f} ranks; expected at most {}", ranks, kMostRanks);
  }
  try {
    schedule_named(c.pipeline_parallel_schedule);
  } catch (const ConfigError& error) {
    problems.add("parallelism.pipeline_parallel_schedule", error);
  }
}

}  // namespace ottava
