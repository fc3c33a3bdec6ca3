#pragma once

#include <cstdint>

#include "fp8/recipe.h"

namespace ottava {

/// How a linear layer is cut among tensor-parallel ranks (arXiv:1909.08053), with the residual stream cut
/// along tokens (arXiv:2205.05198). n = N / tp tokens are local, N all of them.
enum class LinearStyle {
  column,  ///< x [n,K] is gathered to [N,K]; y [N, O/tp]
  row,     ///< x [N, K/tp]; y is summed over ranks and scattered to [n,O]
};

/// How x or dy, whose rows may be divided among tensor-parallel ranks, reaches an FP8 product.
enum class Travel : uint8_t {
  stays,   ///< the rank has all of it
  values,  ///< gathered in the compute type, then quantized
  codes,   ///< quantized, then gathered
};

/// How one FP8 product of a linear layer gets its activations: what makes their codes, and in which form they
/// travel. (Float8WeightTravel says this of its weight.)
struct Float8Plan {
  struct Operand {
    Travel travel = Travel::stays;
    bool takes_amax = false;   ///< its producer may raise the amax: there is one scale, for what it writes
    bool takes_codes = false;  ///< its producer may write the row-wise codes: scales are known as it writes
    /// scales are known from earlier steps, once there are enough; with takes_codes
    bool has_history = false;
  };
  Operand x, dy;
  /// Whether codes of x are kept for the weight gradient (of a gathered x, the local codes); else x itself
  /// is.
  bool keeps_codes = false;
};

/// What the plan follows from, besides the recipe.
struct Float8Layout {
  LinearStyle style = LinearStyle::column;
  int tensor_parallel = 1;
  bool is_part = false;           ///< of a fusion that the policy splits: its parts share x and dy
  bool travels_in_codes = false;  ///< activations should travel as codes, where they can
};
Float8Plan float8_plan(const fp8::Recipe& recipe, const Float8Layout& layout);

}  // namespace ottava
