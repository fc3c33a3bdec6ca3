#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/config/config.h"
#include "apps/config/decisions.h"
#include "apps/config/resolved_model.h"
#include "apps/config/sm_budget.h"
#include "apps/config/training_shape.h"
#include "core/data/tokenizer/tokenizer.h"
#include "parallel/sharding/mesh.h"

namespace ottava {

/// A configuration with everything resolved that depends on files and on the number of ranks.
struct Experiment {
  Config config;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null when planning without one
  Mesh mesh;
  TrainingShape shape;
  std::vector<ModelValue> model_values;  ///< of shape.model, with origins
  Decisions decisions;                   ///< apps/decide/decide.h
  int64_t global_batch = 0;              ///< sequences per optimizer step, all ranks
  std::optional<int> compute_capability;
  SmBudget sm_budget = {};               ///< apps/config/sm_budget.h
  bool repeats_initial_weights = false;  ///< parallel/sharding/repeated_weights.h: only for benchmarks
  bool keeps_data_index = true;          ///< what is counted stays in data_index; benchmarks only read it
  bool decides_afresh = false;           ///< --redecide: what was measured before is measured again
  int64_t tokens_per_step() const { return global_batch * shape.sequence; }
  /// Rows of a micro-batch's products on a rank or, with tensor parallel, on its tensor-parallel ranks
  /// together.
  int64_t tokens_per_micro_batch() const { return shape.batch * shape.sequence / mesh.size(MeshAxis::cp); }
};

/// Resolves a configuration. With `tokenizer` null the vocabulary must come from the configuration or the
/// flavor. `compute_capability` of the GPU (90 for 9.0) decides which FP8 recipes are available; absent: a
/// CPU, which runs all. The shape is that of the first outcome of every open decision (apps/decide/decide.h).
/// Throws ConfigError, with the arithmetic, for batches that do not divide, meshes that do not fit, and
/// models that cannot be built; DeviceError for an FP8 recipe that the GPU lacks; FileError for a config.json
/// that cannot be read.
Experiment resolve_experiment(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                              int world_size, std::optional<int> compute_capability = {});

/// The fewest tokens for whose logits a run on a GPU takes memory at once, where model.loss_chunk_tokens
/// leaves their number open.
inline constexpr int64_t kFewestLossTokens = 1024;
/// True if the run decides when gradients are summed between ranks (apps/decide/decide.h): the configuration
/// leaves it open, and there are several micro-batches and shards.
bool leaves_reduction_open(const Experiment& experiment);
/// True if the run decides what is recomputed: activation_checkpoint.mode is auto.
bool leaves_recompute_open(const Experiment& experiment);
/// Reads the file quantize.linear.float8.auto_decisions. Throws FileError.
Decisions read_auto_decisions(const Config& config);

/// "llama3 8B"; "llama3 8B with other dimensions" if the configuration changes some; "llama3 of one's own" if
/// it sets dim; "from config.json".
std::string model_title(const ModelConfig& config);

/// Whether texts for the model to continue begin with BOS, as the documents in its training do
/// (training.add_bos). Conversations and bare ids have their own BOS; for those the tokenizer's files decide.
bool texts_begin_with_bos(const Experiment& experiment);

/// Reads the tokenizer of model.hf_assets_path.
std::shared_ptr<const Tokenizer> load_tokenizer(const Config& config);

/// Bytes of host memory for a rank's asynchronous checkpoints (parallel/checkpoint/snapshot.h); 0 if there
/// are none.
int64_t snapshot_bytes(const Experiment& experiment, const ShardCoordinates& at);
bool saves_asynchronously(const CheckpointConfig& config);

}  // namespace ottava
