#pragma once

#include <cstdint>
#include <string>

#include "fp8/recipe.h"
#include "fp8/scale_tiles.h"
#include "parallel/sharding/parameter_spec.h"

// Which of a weight's FP8 codes and scales travel between the ranks that share it, and how its shards are cut
// for that. The ranks that make the codes, the count of traffic and the report all read it here.
namespace ottava {

/// What a weight is needed for: the product with the input, the product with the output's gradient, or both.
enum class WeightUse : uint8_t { forward = 1, backward = 2, both = 3 };
constexpr bool includes(WeightUse use, WeightUse part) {
  return (static_cast<uint8_t>(use) & static_cast<uint8_t>(part)) != 0;
}

/// A weight that FP8 products read or, where the policy splits a fused matrix, some rows of one.
struct Float8WeightSpec {
  std::string name;  ///< "layers.0.attention.wqkv", or of a part
  int parameter = 0;
  RowRange rows;                         ///< of the tensor-parallel slice
  int64_t padded_rows = 0;               ///< rows of the product with zero rows at the end; 0: no padding
  fp8::OperandRecipe forward, backward;  ///< how w is made for either use
  bool is_delayed = false;
  /// Whether ranks should gather codes instead of the compute type; only for whole, unpadded weights.
  bool gathers_codes = false;
};

/// How one weight gets from its shards to its products.
struct Float8WeightTravel {
  bool in_codes = false;      ///< gathered as codes; else in the compute type, and every rank quantizes it
  bool shares_codes = false;  ///< forward and backward read the same codes: one gather serves both
  /// Whether inverse scales are gathered with the codes of this use; if not, every rank makes them from
  /// exchanged amaxes.
  bool forward_scales = false, backward_scales = false;
  /// Whether backward's scales are made from exchanged amaxes of columns.
  bool exchanges_column_amax = false;
  /// Shards hold multiples of this many rows, so that the scales of shards are those of the weight.
  int64_t alignment = 1;
  /// Set where codes are asked for but not gathered, because even shards are no multiples of this many rows.
  /// Uneven cuts would leave ranks without rows as soon as shards are small.
  int64_t cut_blocks = 0;
};
/// `slice_rows`: rows of the tensor-parallel slice that is cut into `shards` shards.
Float8WeightTravel float8_weight_travel(const Float8WeightSpec& spec, int64_t slice_rows, int shards);

/// Shape of the scales of a weight [rows, columns] that travel for this use, forward or backward: as its
/// products read them, except that tiled ones travel untiled (fp8/scale_tiles.h), those of the transposed
/// weight by blocks.
Shape travelling_scales(const fp8::OperandRecipe& recipe, WeightUse use, int64_t rows, int64_t columns);
/// How the scales that products read are made from those that travelled.
enum class ScaleForm : uint8_t {
  same,
  tiled,       ///< put into tiles
  transposed,  ///< those of blocks of rows and columns, for column-wise codes
};
ScaleForm scale_form(const fp8::OperandRecipe& recipe, bool columnwise = false);
/// The order in which tiled scales travel.
inline fp8::MxScales::Order travelling_order(WeightUse use) {
  return use == WeightUse::backward ? fp8::MxScales::Order::blocks : fp8::MxScales::Order::rows;
}

}  // namespace ottava
