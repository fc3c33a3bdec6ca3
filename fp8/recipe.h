#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/matmul/matmul.h"
#include "fp8/quantize.h"

namespace ottava::fp8 {

/// How a linear layer's products run. Names are those of torchao and Transformer Engine; README.md has them
/// in a table.
enum class RecipeName : uint8_t {
  tensorwise,             ///< one scale per tensor, of the tensor's own amax
  tensorwise_with_gw_hp,  ///< the same, weight gradient in high precision
  delayed,                ///< tensorwise, scale from the amaxes of earlier steps (amax_history.h)
  rowwise,                ///< a power of two per row
  rowwise_with_gw_hp,  ///< rowwise forward; input gradient with a tensorwise weight; weight gradient in high
                       ///< precision
  blockwise,           ///< 1x128 for activations and gradients, 128x128 for weights
  mxfp8,               ///< 1x32 with E8M0 scales
};
std::string_view name_of(RecipeName name);
/// Inverse of name_of(). Throws ConfigError with the list of names.
RecipeName parse_recipe(std::string_view name);
std::vector<std::string_view> recipe_names();

/// What a matrix is in its layer: input, weight, or gradient of the output.
enum class Role : uint8_t { x, w, dy };

/// How one operand of one product is made.
struct OperandRecipe {
  Role role = Role::x;
  DType format = DType::e4m3;
  Granularity granularity = Granularity::tensor;
  ScaleRounding rounding = ScaleRounding::none;
  bool operator==(const OperandRecipe&) const = default;
};

/// One of the three products. a and b as in core/ops/matmul/matmul.h: forward x and w, input gradient dy and
/// w, weight gradient dy and x.
struct ProductRecipe {
  bool is_fp8 = true;  ///< else high precision, and nothing below matters
  OperandRecipe a, b;
};

struct Recipe {
  RecipeName name = RecipeName::tensorwise;
  ProductRecipe forward, input_gradient, weight_gradient;

  const ProductRecipe& of(MatmulKind kind) const {
    return kind == MatmulKind::forward          ? forward
           : kind == MatmulKind::input_gradient ? input_gradient
                                                : weight_gradient;
  }
  bool has_history() const { return name == RecipeName::delayed; }
  /// Products in FP8 per forward and backward pass of one layer: 3, or 2 with the weight gradient in high
  /// precision.
  int fp8_products() const { return forward.is_fp8 + input_gradient.is_fp8 + weight_gradient.is_fp8; }
  /// Rows, columns and tokens of the local product must be multiples of this.
  int64_t alignment() const { return traits(forward.a.granularity).alignment; }
};

/// power_of_two_scales rounds scales down to powers of two where the recipe leaves the choice (tensorwise,
/// delayed); other recipes always do.
Recipe make_recipe(RecipeName name, bool power_of_two_scales = false);

/// The first recipe in which x or w has scales of this granularity.
RecipeName recipe_with(Granularity granularity);

/// Recipes that a GPU of this compute capability (90 for 9.0) multiplies without emulation.
std::vector<RecipeName> recipes_of_compute_capability(int capability);

}  // namespace ottava::fp8
