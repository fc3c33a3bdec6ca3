#pragma once

#include <cstdint>
#include <string_view>

namespace ottava {

/// out[i] = mean-0 normal value number `first + i` of the tensor `name`, i in [0, count): the inverse normal
/// distribution of a Philox number, computed in double by our own portable code and rounded once to f32.
/// Depends only on (seed, name, index), so every layout and device starts from the same weights. cut > 0:
/// the distribution is truncated at cut * std (by mapping the uniform number into [Phi(-cut), Phi(cut)]).
struct NormalInitialisation {
  uint64_t seed = 0;
  std::string_view name;
  double std = 1;
  double cut = 0;
};
void fill_normal(float* out, int64_t first, int64_t count, const NormalInitialisation& how);

/// Inverse of the standard normal distribution function for p in (0, 1) (P. J. Acklam's rational
/// approximation, relative error below 1.2e-9; initial weights need no more). Uses only +, -, *, / and sqrt,
/// which IEEE arithmetic makes the same everywhere.
double inverse_normal(double p);

}  // namespace ottava
