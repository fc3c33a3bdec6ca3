#include "parallel/sharding/parallelism_config.h"

#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/error.h"
#include "parallel/pipeline/schedule.h"

namespace ottava {

namespace {

void declare_pipeline(config::Section& s, ParallelismConfig& c) {
  s.field("pipeline_parallel_schedule", c.pipeline_parallel_schedule,
          "GPipe or 1F1B; with several stages on each rank Interleaved1F1B, LoopedBFS, InterleavedZeroBubble "
          "or ZBVZeroBubble");
  s.field("pipeline_parallel_microbatch_size", c.pipeline_parallel_microbatch_size,
          "size of a micro-batch in a pipeline; divides training.local_batch_size")
      .at_least(1)
      .unit("sequences");
  s.field("pipeline_parallel_layers_per_stage", c.pipeline_parallel_layers_per_stage,
          "size of a stage, embedding and head counted; null: one stage on each rank, two in schedules that "
          "take several")
      .at_least(1)
      .unit("layers");
  const auto counts_as = [&](const char* key, int64_t& layers, const char* meaning) {
    s.field(key, layers, meaning).at_least(0).unit("layers");
  };
  counts_as("pipeline_parallel_first_stage_less_layers", c.pipeline_parallel_first_stage_less_layers,
            "what the embedding counts as in the first stage");
  counts_as("pipeline_parallel_last_stage_less_layers", c.pipeline_parallel_last_stage_less_layers,
            "what norm and head count as in the last stage");
  s.field("pipeline_parallel_split_points", c.pipeline_parallel_split_points,
          "where stages after the first begin, as [layers.8, layers.20]; empty: by layers");
}

}  // namespace

void declare(config::Section& s, ParallelismConfig& c) {
  s.meaning("how the ranks share the work; the degrees multiply to the number of ranks");
  const auto degree = [&](const char* key, int64_t& ranks, const char* meaning, int64_t least = 1) {
    s.field(key, ranks, meaning).at_least(least).unit("ranks");
  };
  degree("data_parallel_replicate_degree", c.data_parallel_replicate_degree,
         "copies of the sharded model (HSDP; DDP when the shard degree is 1)");
  degree("data_parallel_shard_degree", c.data_parallel_shard_degree,
         "FSDP: ranks that share parameters, gradients and optimizer state; -1: the rest", -1);
  degree("context_parallel_degree", c.context_parallel_degree,
         "ranks that share each sequence, two chunks each (head-tail), and gather keys and values");
  degree("tensor_parallel_degree", c.tensor_parallel_degree,
         "ranks that share each matrix, with sequence parallel norms");
  degree("pipeline_parallel_degree", c.pipeline_parallel_degree,
         "ranks that hold the stages of the model one after the other");
  declare_pipeline(s, c);
  using Reshard = ParallelismConfig::Reshard;
  s.choice("fsdp_reshard_after_forward", c.fsdp_reshard_after_forward,
           {{"default", Reshard::automatic}, {"always", Reshard::always}, {"never", Reshard::never}},
           "free gathered parameters after forward; default: all but the last unit");
  using Reduce = ParallelismConfig::Reduce;
  s.choice(
      "fsdp_reduce_every_microbatch", c.fsdp_reduce_every_microbatch,
      {{"auto", Reduce::automatic}, {"true", Reduce::every_microbatch}, {"false", Reduce::once_per_step}},
      "reduce gradients after every micro-batch (less memory) or once per step (less traffic); auto: "
      "once where memory suffices");
  s.field("fsdp_prefetch", c.fsdp_prefetch, "units gathered ahead of their use").range(0, 8).unit("units");
  s.field("enable_async_tensor_parallel", c.enable_async_tensor_parallel,
          "send activations between tensor parallel ranks in blocks, beside products of blocks, in the "
          "layers where that is measured to be faster");
  s.field("disable_loss_parallel", c.disable_loss_parallel,
          "gather logits instead of sharing the loss among tensor parallel ranks");
}

void validate(const ParallelismConfig& c, config::Problems& problems) {
  if (c.data_parallel_shard_degree == 0) {
    problems.add("parallelism.data_parallel_shard_degree",
                 "0 ranks hold nothing; expected -1 (the rest) or at least 1");
  }
  try {
    schedule_named(c.pipeline_parallel_schedule);
  } catch (const ConfigError& error) {
    problems.add("parallelism.pipeline_parallel_schedule", error);
  }
}

}  // namespace ottava
