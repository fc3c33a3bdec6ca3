#include "parallel/sharding/float8_travel.h"

#include "core/round_up.h"

#include <algorithm>

namespace ottava {
namespace {

/// A shard's scales are made from what all ranks know: an amax, or amaxes of columns, that they exchange.
bool scales_are_common(const fp8::GranularityTraits& t, WeightUse use) {
  return t.amax == fp8::AmaxSource::given || (use == WeightUse::backward && t.needs_column_amax);
}

}  // namespace

Float8WeightTravel float8_weight_travel(const Float8WeightSpec& spec, int64_t slice_rows, int shards) {
  const fp8::GranularityTraits &forward = fp8::traits(spec.forward.granularity),
                               &backward = fp8::traits(spec.backward.granularity);
  Float8WeightTravel out{.in_codes = spec.gathers_codes,
                         .shares_codes = spec.forward == spec.backward && forward.is_transpose_invariant,
                         .forward_scales = !scales_are_common(forward, WeightUse::forward),
                         .backward_scales = !scales_are_common(backward, WeightUse::backward),
                         .exchanges_column_amax = backward.needs_column_amax};
  if (!spec.gathers_codes) return out;
  out.alignment = std::max<int64_t>(forward.block_rows, 1);
  // Blocks of the transposed weight run along its rows.
  const bool has_blocks_of_rows = backward.has_blocks() && !backward.is_transpose_invariant;
  if (shards > 1 && has_blocks_of_rows &&
      largest_shard_rows(slice_rows, shards) % backward.block_columns != 0) {
    out.in_codes = false;
    out.cut_blocks = backward.block_columns;
  }
  return out;
}

ScaleForm scale_form(const fp8::OperandRecipe& recipe, bool columnwise) {
  const fp8::GranularityTraits& t = fp8::traits(recipe.granularity);
  if (t.is_tiled) return ScaleForm::tiled;
  return columnwise && t.is_transpose_invariant && t.has_blocks() ? ScaleForm::transposed : ScaleForm::same;
}

Shape travelling_scales(const fp8::OperandRecipe& recipe, WeightUse use, int64_t rows, int64_t columns) {
  const fp8::GranularityTraits& t = fp8::traits(recipe.granularity);
  if (!t.is_tiled) return fp8::scale_shape(recipe.granularity, rows, columns);
  auto blocks = [&](int64_t n) { return pieces_of(n, t.block_columns); };
  return use == WeightUse::backward ? Shape{blocks(rows), columns} : Shape{rows, blocks(columns)};
}

}  // namespace ottava
