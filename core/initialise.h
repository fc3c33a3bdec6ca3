#pragma once

#include <cstdint>
#include <string_view>

namespace ottava {

/// out[i] = value number `first + i` of the tensor `name`, for i in [0, count), normal with mean 0: the
/// inverse normal distribution of a Philox number, computed in double by portable code of our own and rounded
/// once to f32. It depends only on (seed, name, index), so every layout and device starts from the same
/// weights. cut > 0 truncates the distribution at cut * std, by mapping the uniform number into [Phi(-cut),
/// Phi(cut)].
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
