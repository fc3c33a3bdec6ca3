#include "parallel/sharding/parallelism_config.h"

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava {

using config::Type;
using config::Value;

namespace {

/// Pipeline, context and expert parallel: the degrees are refused, and what only shapes them has no meaning.
void declare_absent_axes(config::Section& s) {
  Value one = Value::of(int64_t{1});
  const char* no_pipeline = "there is no pipeline parallel yet, so nothing is split into stages";
  s.foreign("pipeline_parallel_degree", one)
      .refused("pipeline parallel is not built yet; use data and tensor parallel");
  s.foreign("module_fqns_per_model_part", Type::text_list).refused(no_pipeline);
  s.foreign("pipeline_parallel_split_points", Value::list_of({})).refused(no_pipeline);
  s.foreign("pipeline_parallel_first_stage_less_layers", one).noted(no_pipeline);
  s.foreign("pipeline_parallel_last_stage_less_layers", one).noted(no_pipeline);
  s.foreign("pipeline_parallel_layers_per_stage", Type::integer).noted(no_pipeline);
  s.foreign("pipeline_parallel_schedule", Value::of(std::string("1F1B"))).noted(no_pipeline);
  s.foreign("pipeline_parallel_schedule_csv", Value::of(std::string())).noted(no_pipeline);
  s.foreign("pipeline_parallel_microbatch_size", one).noted(no_pipeline);
  s.foreign("pipeline_parallel_expert_parallel_overlap", Value::of(true)).noted(no_pipeline);

  const char* no_context = "there is no context parallel yet, so sequences are not split";
  s.foreign("context_parallel_degree", one)
      .refused("context parallel is not built yet; use tensor parallel for long sequences");
  s.foreign("context_parallel_load_balancer", Value::of(std::string("headtail"))).noted(no_context);
  s.foreign("context_parallel_rotate_method", Value::of(std::string("allgather")))
      .one_of({"allgather", "alltoall"})
      .noted(no_context);

  const char* no_experts = "the models here are dense: there are no experts";
  s.foreign("expert_parallel_degree", one).refused(no_experts);
  s.foreign("expert_tensor_parallel_degree", one).refused(no_experts);
  s.foreign("expert_parallel_comm_backend", Value::of(std::string("standard")))
      .one_of({"standard", "deepep"})
      .noted(no_experts);
}

}  // namespace

void declare(config::Section& s, ParallelismConfig& c) {
  s.meaning("how the ranks share the work; the degrees multiply to the number of ranks");
  s.field("data_parallel_replicate_degree", c.data_parallel_replicate_degree)
      .at_least(1)
      .unit("ranks")
      .meaning("copies of the sharded model (HSDP; DDP when the shard degree is 1)");
  s.field("data_parallel_shard_degree", c.data_parallel_shard_degree)
      .at_least(-1)
      .unit("ranks")
      .meaning("FSDP: ranks that share parameters, gradients and optimizer state; -1: the rest");
  s.field("tensor_parallel_degree", c.tensor_parallel_degree)
      .at_least(1)
      .unit("ranks")
      .meaning("ranks that share each matrix, with sequence parallel norms");
  using Reshard = ParallelismConfig::Reshard;
  s.choice("fsdp_reshard_after_forward", c.fsdp_reshard_after_forward,
           {{"default", Reshard::automatic}, {"always", Reshard::always}, {"never", Reshard::never}})
      .meaning("free gathered parameters after forward; default: all but the last unit");
  using Reduce = ParallelismConfig::Reduce;
  s.choice(
       "fsdp_reduce_every_microbatch", c.fsdp_reduce_every_microbatch,
       {{"auto", Reduce::automatic}, {"true", Reduce::every_microbatch}, {"false", Reduce::once_per_step}})
      .meaning(
          "reduce gradients after every micro-batch (less memory) or once per step (less traffic); auto: "
          "after "
          "every one");
  s.field("fsdp_prefetch", c.fsdp_prefetch)
      .range(0, 8)
      .unit("units")
      .meaning("units gathered ahead of their use");
  s.field("disable_loss_parallel", c.disable_loss_parallel)
      .meaning("gather logits instead of sharing the loss among tensor parallel ranks");
  s.foreign("enable_async_tensor_parallel", Value::of(false))
      .noted("overlap is part of the layers and needs no switch");
  s.foreign("enable_compiled_autograd", Value::of(false))
      .noted("backward is written by hand; nothing is compiled at run time");
  declare_absent_axes(s);
}

void validate(const ParallelismConfig& c, config::Problems& problems) {
  if (c.data_parallel_shard_degree == 0) {
    problems.add("parallelism.data_parallel_shard_degree",
                 "0 ranks hold nothing; expected -1 (the rest) or at least 1");
  }
}

}  // namespace ottava
