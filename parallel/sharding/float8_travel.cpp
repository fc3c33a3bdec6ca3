#include "parallel/sharding/float8_travel.h"

namespace ottava {
namespace {

using fp8::Granularity;

bool same_bytes(const fp8::OperandRecipe& a, const fp8::OperandRecipe& b) {
  return a.granularity == b.granularity && a.format == b.format && a.rounding == b.rounding &&
         scales_turn(a.granularity);
}
/// The scales of a shard are made from what all ranks know, and need not travel.
bool scales_are_common(const fp8::OperandRecipe& recipe, bool backward_form) {
  return recipe.granularity == Granularity::tensor ||
         (recipe.granularity == Granularity::row && backward_form);
}

}  // namespace

int64_t shard_alignment(const Float8WeightSpec& spec) {
  return spec.gathers_bytes && spec.forward.granularity == Granularity::block_128x128 ? 128 : 1;
}

bool gathers_bytes(const Float8WeightSpec& spec, int64_t slice_rows, int shards) {
  if (!spec.gathers_bytes || shards == 1) return spec.gathers_bytes;
  return !is_mx(spec.forward) || largest_shard_rows(slice_rows, shards) % kMxBlockRows == 0;
}

Shape travelling_scales(const fp8::OperandRecipe& recipe, bool backward_form, int64_t rows, int64_t columns) {
  if (!is_mx(recipe)) return fp8::scale_shape(recipe.granularity, rows, columns);
  auto blocks = [](int64_t n) { return (n + kMxBlockRows - 1) / kMxBlockRows; };
  return backward_form ? Shape{blocks(rows), columns} : Shape{rows, blocks(columns)};
}

Float8Travel float8_travel(const Float8WeightSpec& spec) {
  return {.shares_bytes = same_bytes(spec.forward, spec.backward),
          .forward_scales = !scales_are_common(spec.forward, false),
          .backward_scales = !scales_are_common(spec.backward, true)};
}

}  // namespace ottava
