#include "apps/config/resolved_layout.h"

#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/round_up.h"

namespace ottava {

MeshDegrees mesh_degrees(const Config& c) {
  return {.pp = static_cast<int>(c.parallelism.pipeline_parallel_degree),
          .dp_replicate = static_cast<int>(c.parallelism.data_parallel_replicate_degree),
          .dp_shard = static_cast<int>(c.parallelism.data_parallel_shard_degree),
          .cp = static_cast<int>(c.parallelism.context_parallel_degree),
          .tp = static_cast<int>(c.parallelism.tensor_parallel_degree)};
}

Batches resolve_batches(const Config& c, const Mesh& mesh) {
  const int64_t ranks =
      static_cast<int64_t>(mesh.size(MeshAxis::dp_replicate)) * mesh.size(MeshAxis::dp_shard);
  const int64_t local = c.training.local_batch_size, together = local * ranks;
  const int64_t global = c.training.global_batch_size < 0 ? together : c.training.global_batch_size;
  if (global % together != 0 || global < together) {
    fail<ConfigError>("training",
                      "global_batch_size {} is not a multiple of local_batch_size {} x {} data-parallel "
                      "ranks = {} (remainder {}): set training.global_batch_size to {}, or change one of the "
                      "others",
                      global, local, ranks, together, global % together, round_up(global, together));
  }
  const Batches batches{global, global / together};
  if (batches.micro_batches > kMostMicroBatches)
    fail<ConfigError>("training",
                      "global_batch_size {} makes {} micro-batches of local_batch_size {} on each rank, "
                      "expected at most {}: "
                      "lower global_batch_size, raise local_batch_size or use more data-parallel ranks",
                      global, batches.micro_batches, local, kMostMicroBatches);
  return batches;
}

FsdpOptions resolve_fsdp(const Config& c) {
  const ParallelismConfig& p = c.parallelism;
  return {
      .compute = c.training.mixed_precision_param,
      .reduce = c.training.mixed_precision_reduce,
      .optimizer_state = c.optimizer.state_dtype,
      .reshard = p.fsdp_reshard_after_forward,
      .prefetch = static_cast<int>(p.fsdp_prefetch),
      .reduce_every_micro_batch = p.fsdp_reduce_every_microbatch != ParallelismConfig::Reduce::once_per_step};
}

bool reductions_cross(const FsdpOptions& options, bool graphs) {
  return !graphs && options.reshard == FsdpOptions::Reshard::never;
}

void check_context_parallel(const Config& c, int cp) {
  if (cp == 1) return;
  const int64_t unit = context_parallel_unit(cp);
  const auto divides = [&](std::string_view key, int64_t tokens) {
    if (tokens % unit == 0) return;
    fail<ConfigError>("parallelism",
                      "context_parallel_degree {} divides each sequence into {} chunks, but {} {} does not "
                      "give chunks of a multiple of {} tokens: use a multiple of {}, such as {}",
                      cp, 2 * cp, key, tokens, unit / (2 * cp), unit, round_up(tokens, unit));
  };
  divides("training.seq_len", c.training.seq_len);
  if (c.validates()) divides("validation.seq_len", c.validation.seq_len);
}

// A text is read token by token, which gives too few rows for tensor parallel to divide; and no pipeline
// stage holds all layers, no context parallel rank all positions.
void resolve_samples(const Config& c, const Mesh& mesh, TrainingShape& shape) {
  if (!c.evaluation.enable || c.evaluation.prompts.empty()) return;
  for (const auto& [axis, name] : {std::pair{MeshAxis::pp, "pipeline"}, std::pair{MeshAxis::cp, "context"},
                                   std::pair{MeshAxis::tp, "tensor"}}) {
    if (mesh.size(axis) > 1) {
      fail<ConfigError>("evaluation",
                        "prompts are not supported with {} parallelism (degree {}): remove "
                        "evaluation.prompts, and run ottava generate on the checkpoints",
                        name, mesh.size(axis));
    }
  }
  shape.prompts = std::ssize(c.evaluation.prompts);
  shape.sample_length = c.evaluation.longest_sample();
}

namespace {

// A sequence of so many tokens can be cut among the ranks with any batch.
int64_t rows_unit(int64_t tp, int64_t cp) {
  return cp == 1 ? tp : std::lcm(tp * cp, context_parallel_unit(cp));
}

}  // namespace

void check_tensor_parallel(const LlamaConfig& m, const Config& c, int tp, int cp) {
  if (tp == 1) return;
  const auto refuse = [&](std::string_view what, int64_t value, std::string_view key, int64_t remedy) {
    fail<ConfigError>("parallelism",
                      "tensor_parallel_degree {} does not divide {} {} (remainder {}): set {} to {}, or "
                      "choose another degree",
                      tp, what, value, value % tp, key, remedy);
  };
  if (m.heads % tp != 0) {
    const int64_t more = round_up(m.heads, tp);
    refuse("n_heads", m.heads,
           m.dim % more == 0 ? "model.n_heads"
                             : fmt::format("model.head_dim to {} and model.n_heads", m.head_dim),
           more);
  }
  for (const auto& [name, value] : {std::pair{"ffn_dim", m.ffn_dim}, std::pair{"vocab_size", m.vocab_size}})
    if (value % tp != 0) refuse(name, value, fmt::format("model.{}", name), round_up(value, tp));
  // In a pass through a block each rank holds its part of the rows.
  const auto divides = [&](std::string_view batch_key, int64_t batch, std::string_view section,
                           int64_t sequence) {
    if (const int64_t rows = batch * sequence / cp; rows % tp != 0)
      refuse(fmt::format("{} x seq_len{} =", batch_key, cp == 1 ? "" : " / context_parallel_degree"), rows,
             fmt::format("{}.seq_len", section), round_up(sequence, rows_unit(tp, cp)));
  };
  if (c.parallelism.pipeline_parallel_degree > 1) {
    divides("parallelism.pipeline_parallel_microbatch_size", c.parallelism.pipeline_parallel_microbatch_size,
            "training", c.training.seq_len);
  } else {
    divides("training.local_batch_size", c.training.local_batch_size, "training", c.training.seq_len);
  }
  if (c.validates())
    divides("validation.local_batch_size", c.validation.local_batch_size, "validation", c.validation.seq_len);
  if (m.kv_heads % tp != 0 && tp % m.kv_heads != 0) {
    fail<ConfigError>("parallelism",
                      "tensor_parallel_degree {} neither divides n_kv_heads {} nor is a multiple of it: "
                      "choose another degree",
                      tp, m.kv_heads);
  }
}

namespace {

// What no pipeline can do.
void check_pipeline(const Config& c, int ranks, const LlamaConfig& model) {
  const ParallelismConfig& p = c.parallelism;
  auto refuse = [&](std::string_view what) {
    fail<ConfigError>("pipeline", "pipeline_parallel_degree is {}, {}", ranks, what);
  };
  if (model.tied_embeddings)
    refuse(
        "but the model ties its output layer to its embedding, and the two are in different stages: set "
        "model.tie_embeddings to false, or use data and tensor parallelism");
  if (p.fsdp_reshard_after_forward == ParallelismConfig::Reshard::always)
    refuse(
        "but fsdp_reshard_after_forward is always: pipeline stages keep their gathered weights for the whole "
        "step; set it to default or never");
  if (p.fsdp_reduce_every_microbatch == ParallelismConfig::Reduce::every_microbatch)
    refuse(
        "but fsdp_reduce_every_microbatch is true: a stage reduces its gradients once, after its last "
        "backward; set it to auto or false");
  if (c.training.local_batch_size % p.pipeline_parallel_microbatch_size != 0)
    fail<ConfigError>(
        "pipeline",
        "local_batch_size {} is not a multiple of pipeline_parallel_microbatch_size {} (remainder {}): set "
        "parallelism.pipeline_parallel_microbatch_size to {}, or change training.local_batch_size",
        c.training.local_batch_size, p.pipeline_parallel_microbatch_size,
        c.training.local_batch_size % p.pipeline_parallel_microbatch_size,
        std::gcd(c.training.local_batch_size, p.pipeline_parallel_microbatch_size));
}

}  // namespace

void resolve_pipeline(const Config& c, int ranks, TrainingShape& shape) {
  const ParallelismConfig& p = c.parallelism;
  if (ranks == 1) return;
  check_pipeline(c, ranks, shape.model);
  shape.micro_batches *= c.training.local_batch_size / p.pipeline_parallel_microbatch_size;
  if (shape.micro_batches > kMostMicroBatches)
    fail<ConfigError>("pipeline",
                      "pipeline_parallel_microbatch_size {} makes {} micro-batches of a step on each rank, "
                      "expected at most {}: raise it, or lower global_batch_size or local_batch_size",
                      p.pipeline_parallel_microbatch_size, shape.micro_batches, kMostMicroBatches);
  shape.batch = p.pipeline_parallel_microbatch_size;
  const ScheduleKind schedule = schedule_named(p.pipeline_parallel_schedule);
  std::vector<StageUnits> stages = split_stages({.layers = shape.model.layers,
                                                 .ranks = ranks,
                                                 .is_looped = is_looped(schedule),
                                                 .layers_per_stage = p.pipeline_parallel_layers_per_stage,
                                                 .first_less = p.pipeline_parallel_first_stage_less_layers,
                                                 .last_less = p.pipeline_parallel_last_stage_less_layers,
                                                 .split_points = p.pipeline_parallel_split_points});
  shape.pipeline = {.shape = {.schedule = schedule,
                              .ranks = ranks,
                              .chunks = static_cast<int>(stages.size()) / ranks,
                              .micro_batches = static_cast<int>(shape.micro_batches)},
                    .stages = std::move(stages)};
  if (const std::string complaint = complaint_about(shape.pipeline.shape); !complaint.empty())
    fail<ConfigError>("pipeline", "{}", complaint);
  shape.parameters.reshard = FsdpOptions::Reshard::never;
  shape.parameters.reduce_every_micro_batch = false;
}

}  // namespace ottava
