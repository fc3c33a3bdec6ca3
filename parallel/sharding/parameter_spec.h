#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/optim/update_rule.h"
#include "core/tensor.h"

namespace ottava {

/// How a parameter is cut among tensor-parallel ranks, seen from its stored [rows, columns] matrix.
enum class TensorParallel {
  replicate,  ///< every rank holds all of it (norms)
  rows,       ///< rank r holds the r-th rows of each part (column-parallel linear, vocab-parallel embedding,
              ///< output)
  columns,    ///< rank r holds the r-th columns (row-parallel linear)
};

/// Initial distribution; values depend only on (seed, HF tensor name, element index).
struct Initialisation {
  enum class Kind { ones, normal, truncated_normal } kind = Kind::normal;
  double std = 0.02;
  double cut = 3;  ///< truncated_normal: bound in units of std
};

/// What a parameter does in the model. Only a `linear` one may have a gradient that travels as FP8, or be
/// kept as FP8 codes in place of values; optimizer.name gives only these to Muon.
enum class ParameterRole { embedding, norm, linear, bias, output };

/// One tensor as Hugging Face stores it. A fused parameter stacks several along rows.
struct ParameterPart {
  std::string name;     ///< short name, "wq": what policies and filters match
  std::string hf_name;  ///< "model.layers.0.self_attn.q_proj.weight"
  int64_t rows = 0;     ///< global
  /// Indivisible groups of rows (heads, for attention; else single rows). With more
  /// tensor-parallel ranks than groups, neighbouring ranks hold the same group and the lowest of them owns it
  /// (KV heads, tp > kv heads).
  int64_t groups = 0;
  Initialisation init;
};

/// One trainable parameter. The table of these is the single source of initialisation, FSDP units, optimizer
/// groups, checkpoint files and HF names.
struct ParameterSpec {
  std::string name;  ///< "layers.0.attention.wqkv"
  std::vector<ParameterPart> parts;
  int64_t columns = 0;  ///< global; vectors (norms, biases) are stored as [rows] with columns = 1
  bool is_vector = false;
  TensorParallel tensor_parallel = TensorParallel::replicate;
  ParameterRole role = ParameterRole::linear;
  int unit = 0;                 ///< FSDP unit, in forward order; the tied embedding is a unit of its own
  int64_t shard_alignment = 1;  ///< FSDP cuts at multiples of this many rows
  UpdateRule rule = UpdateRule::adamw;

  int64_t rows() const {
    int64_t sum = 0;
    for (const ParameterPart& part : parts) sum += part.rows;
    return sum;
  }
  int64_t numel() const { return rows() * columns; }
};

/// Elements of the parameters that each rule trains; rules that train none are not among them.
std::map<UpdateRule, int64_t> elements_by_rule(const std::vector<ParameterSpec>& specs);

/// Where a rank stands, as far as storing parameters is concerned. FSDP cuts the tensor-parallel slice along
/// rows into `shard_size` pieces of ceil(rows / shard_size) rows, rounded up to a multiple of the alignment;
/// the last pieces may be shorter or empty.
struct ShardCoordinates {
  int tp_rank = 0, tp_size = 1;
  int shard_rank = 0, shard_size = 1;
  int replica_rank = 0;          ///< data-parallel replica; replica 0 writes
  std::vector<bool> units = {};  ///< those of the rank's pipeline stages; empty: all
  bool holds(int unit) const { return units.empty() || units[unit]; }
};

/// A rectangle of an HF tensor and where it lies in a rank's local shard.
struct ShardRun {
  int part = 0;                              ///< index into ParameterSpec::parts
  int64_t row_begin = 0, row_end = 0;        ///< rows of the HF tensor
  int64_t column_begin = 0, column_end = 0;  ///< columns of the HF tensor
  int64_t local_row = 0;                     ///< first row in the rank's shard [local_rows, local_columns]
  bool is_owner = true;                      ///< false for a duplicate that another rank writes (KV replicas)

  int64_t rows() const { return row_end - row_begin; }
  int64_t columns() const { return column_end - column_begin; }
  /// Its rows of the rank's shard, or of a tensor with the same layout.
  Tensor of(const Tensor& shard) const { return shard.slice(local_row, local_row + rows()); }
};

/// Shape of the tensor-parallel slice (before FSDP). Throws ConfigError if tp_size does not divide the
/// columns to be cut, or neither divides a part's groups nor is a multiple of them.
Shape tensor_parallel_shape(const ParameterSpec& spec, int tp_size);
/// Ranks that hold the same rows of a part: tp / groups where it has fewer groups than there are ranks,
/// else 1.
int ranks_that_share(const ParameterSpec& spec, const ParameterPart& part, int tp_size);
/// Rows [begin, end).
struct RowRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
/// Rows of the slice that a rank's FSDP shard holds, [begin, end); empty for ranks past the end.
RowRange shard_rows(int64_t slice_rows, int shard_rank, int shard_size, int64_t alignment = 1);
/// Rows of the largest shard.
int64_t largest_shard_rows(int64_t slice_rows, int shard_size, int64_t alignment = 1);
/// The rank's rectangles in order of local rows; none if it does not hold the unit. Initialising, saving,
/// loading and verifying all use this one mapping. Over all ranks with replica_rank 0 the owned runs cover
/// every element exactly once.
std::vector<ShardRun> shard_runs(const ParameterSpec& spec, const ShardCoordinates& at);

}  // namespace ottava
