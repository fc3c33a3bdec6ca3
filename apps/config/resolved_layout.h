#pragma once

#include <cstdint>

#include "apps/config/config.h"
#include "apps/config/training_shape.h"
#include "parallel/sharding/mesh.h"

namespace ottava {

/// The degrees that section `parallelism` gives.
MeshDegrees mesh_degrees(const Config& config);

/// Of a step on one rank. No run has use for more, and a plan records every one.
inline constexpr int64_t kMostMicroBatches = 65536;
/// Sequences of a step on all ranks, and rounds in which each rank computes its share.
struct Batches {
  int64_t global, micro_batches;
};
/// Throws ConfigError, with the remainder, if batches do not divide, and if a rank has more rounds than
/// kMostMicroBatches.
Batches resolve_batches(const Config& config, const Mesh& mesh);

/// Options of FSDP, without those of FP8 (resolved_float8.h).
FsdpOptions resolve_fsdp(const Config& config);
/// True if reductions of FSDP may run beside the next micro-batch (FsdpOptions::reductions_cross): weights
/// stay whole, and micro-batches are not CUDA graphs.
bool reductions_cross(const FsdpOptions& options, bool graphs);

/// The length of sequences that `degree` ranks share must be a multiple of this. Chunks are then whole tiles
/// of 128 tokens, so that attention and FP8 cut a sequence into tiles and blocks as one rank would.
constexpr int64_t context_parallel_unit(int64_t degree) { return 2 * degree * 128; }
/// Throws ConfigError if the length of sequences is not a multiple of that.
void check_context_parallel(const Config& config, int degree);
/// Gives the shape its prompts. Throws ConfigError for evaluation.prompts if ranks do not hold whole layers
/// and sequences.
void resolve_samples(const Config& config, const Mesh& mesh, TrainingShape& shape);
/// Throws ConfigError, with the remainder, if `tp` ranks do not divide the model or a micro-batch's tokens.
void check_tensor_parallel(const LlamaConfig& model, const Config& config, int tp, int cp);
/// Gives the shape its stages and schedule, and cuts its micro-batches into those of the pipeline, through
/// which those of all accumulation rounds go together. Does nothing for one rank. Throws ConfigError.
void resolve_pipeline(const Config& config, int ranks, TrainingShape& shape);

}  // namespace ottava
