#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/config/config.h"
#include "apps/config/resolved_model.h"
#include "apps/decide/decisions.h"
#include "apps/decide/sm_budget.h"
#include "apps/train/training_engine.h"
#include "core/data/tokenizer/tokenizer.h"
#include "parallel/ranks/mesh.h"

namespace ottava {

/// A configuration with everything worked out that files and the number of ranks decide.
struct Experiment {
  Config config;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null when planning without one
  Mesh mesh;
  TrainingShape shape;
  std::vector<ModelValue> model_values;  ///< of shape.model, with origins
  Decisions decisions;                   ///< apps/decide/decide.h
  int64_t global_batch = 0;              ///< sequences per optimizer step, all ranks
  std::optional<int> compute_capability;
  SmBudget sm_budget = {};               ///< apps/decide/sm_budget.h
  bool repeats_initial_weights = false;  ///< parallel/sharding/repeated_weights.h: only for benchmarks
  bool decides_afresh = false;           ///< --redecide: what was measured before is measured again
  int64_t tokens_per_step() const { return global_batch * shape.sequence; }
  /// Rows of a micro-batch's products: of a rank, or of its tensor parallel ranks together.
  int64_t tokens_per_micro_batch() const { return shape.batch * shape.sequence / mesh.size(MeshAxis::cp); }
};

MeshDegrees mesh_degrees(const Config& config);
/// Sequences that `degree` ranks share have a multiple of so many tokens: chunks of whole tiles of 128, so
/// that attention cuts a sequence as one rank would, and FP8 its blocks of tokens.
constexpr int64_t context_parallel_unit(int64_t degree) { return 2 * degree * 128; }

/// Throws ConfigError with the arithmetic for batches that do not divide, meshes that do not fit, models that
/// cannot be built. With `tokenizer` null the vocabulary must come from the configuration or the flavor.
/// `compute_capability` of the GPU (90 for 9.0), which decides the FP8 recipes that there are; absent: a CPU,
/// which runs all of them. The shape is that of the first outcome of every open decision
/// (apps/decide/decide.h).
Experiment resolve_experiment(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                              int world_size, std::optional<int> compute_capability = {});

/// True if the run decides when gradients are summed between ranks (apps/decide/decide.h): it is left to it,
/// and there are several micro-batches and shards.
bool leaves_reduction_open(const Experiment& experiment);
/// True if the run decides whether codes of gathered FP8 weights stay through the step
/// (apps/decide/decide.h): it is left to it, and there are such weights that do not stay whole anyway.
bool leaves_weight_codes_open(const Experiment& experiment);
/// True if reductions of FSDP may run beside the next micro-batch (FsdpOptions::reductions_cross): weights
/// stay whole, and micro-batches are no CUDA graphs.
bool reductions_cross(const FsdpOptions& options, bool graphs);

/// Decides the FP8 policy again from measured speedups (quantize.linear.float8.auto; float8_speedup.h).
void apply_measured_float8(Experiment& experiment, const Decisions& measured);
/// The file quantize.linear.float8.auto_decisions. Throws FileError.
Decisions read_auto_decisions(const Config& config);

/// "llama3 8B"; "llama3 8B with other dimensions" where the configuration changes some; "llama3 of one's own"
/// where it sets dim; "from config.json".
std::string model_title(const ModelConfig& config);

/// Reads the tokenizer of model.hf_assets_path.
std::shared_ptr<const Tokenizer> load_tokenizer(const Config& config);

/// What a recorded run of the step on `meta` says about memory and cost, for one rank.
struct StepPlan {
  MemoryPlan memory;
  std::vector<CostRecorder::Total> costs;     ///< of one training step
  std::vector<RecordedOperation> operations;  ///< of that step
  RecordedOrder order;                        ///< of that step
  CommStats traffic;                          ///< of that step
  double flops(Precision precision) const;
  int64_t matmul_workspace_bytes = 0;
};
/// float8_remarks() of this experiment (models/llama/llama_float8.h), and what the codes of gathered weights
/// cost in memory and quantizing.
std::vector<std::string> float8_remarks(const Experiment& experiment, const StepPlan& plan);
/// Quantizing of gathered weights in a step: calls, and bytes that cross memory.
struct WeightQuantizing {
  int64_t calls = 0;
  double bytes = 0;
};
WeightQuantizing weight_quantizing(const StepPlan& plan);

/// Host memory of a rank's asynchronous checkpoints (parallel/checkpoint/snapshot.h); 0 where none are made.
int64_t snapshot_bytes(const Experiment& experiment, const ShardCoordinates& at);
bool saves_asynchronously(const CheckpointConfig& config);

/// Runs set-up, a training step and, if configured, a validation step on `meta` for the rank of `ranks`.
StepPlan record_step(const TrainingShape& shape, Device target, RankGroups& ranks);
/// What one training step does, in order, with what is planned for it (StepProfile on `meta`).
std::vector<StepProfile::Span> record_spans(const TrainingShape& shape, Device target, RankGroups& ranks);
/// The same for one rank of this mesh, without ranks.
StepPlan record_rank(const TrainingShape& shape, Device target, const Mesh& mesh, int rank);
/// And for rank 0.
StepPlan record_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh);

}  // namespace ottava
