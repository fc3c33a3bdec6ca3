#pragma once

#include <cstdint>
#include <string>

#include "fp8/recipe.h"
#include "fp8/scale_tiles.h"
#include "parallel/sharding/parameter_spec.h"

// What of a weight's FP8 bytes and scales travels between the ranks that share it, and how its shards are cut
// for that: functions of its description alone, for whoever makes the bytes and whoever counts the traffic.
namespace ottava {

/// A weight that FP8 products read, or the rows of one where the policy splits a fused matrix.
struct Float8WeightSpec {
  std::string name;  ///< "layers.0.attention.wqkv", or of a part
  int parameter = 0;
  RowRange rows;                         ///< of the tensor-parallel slice
  int64_t padded_rows = 0;               ///< rows of the product with zero rows at the end; 0: no padding
  fp8::OperandRecipe forward, backward;  ///< how w is made for either use
  bool is_delayed = false;
  /// Ranks should gather FP8 bytes, not the compute type; whole, unpadded weights alone.
  bool gathers_bytes = false;
};

/// Rows that a shard must hold in whole multiples, so that the scales of this weight's shards travel as they
/// are.
int64_t shard_alignment(const Float8WeightSpec& spec);

/// Rows of a block that shards of granularity 1x32 must not cut: their columns are scaled in blocks of as
/// many rows.
inline constexpr int64_t kMxBlockRows = 32;
/// True if shards of a slice of this many rows gather bytes: where that is asked for and, of mxfp8, shards
/// are whole blocks. Cutting elsewhere than evenly, as for 128x128, would leave ranks without rows as soon as
/// shards are small.
bool gathers_bytes(const Float8WeightSpec& spec, int64_t slice_rows, int shards);

/// Which scales of a weight that is gathered in FP8 travel with its bytes. Others every rank makes from
/// exchanged amaxes.
struct Float8Travel {
  bool shares_bytes = false;  ///< one gather's bytes serve both uses
  bool forward_scales = false, backward_scales = false;
};
Float8Travel float8_travel(const Float8WeightSpec& spec);
/// The scales of a form that travel, of a weight [rows, columns]: as its products read them, but those of
/// 1x32 without tiles (fp8/scale_tiles.h), of the transposed weight by blocks.
Shape travelling_scales(const fp8::OperandRecipe& recipe, bool backward_form, int64_t rows, int64_t columns);
/// And the order in which those of 1x32 lie.
inline fp8::MxScales::Order travelling_order(bool backward_form) {
  return backward_form ? fp8::MxScales::Order::blocks : fp8::MxScales::Order::rows;
}

/// The scales of the transposed matrix are those of the matrix.
inline bool scales_turn(fp8::Granularity granularity) {
  return granularity == fp8::Granularity::tensor || granularity == fp8::Granularity::block_128x128;
}
inline bool is_mx(const fp8::OperandRecipe& recipe) {
  return recipe.granularity == fp8::Granularity::block_1x32;
}

}  // namespace ottava
