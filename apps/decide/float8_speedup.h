#pragma once

#include <string>

#include "apps/decide/decisions.h"
#include "fp8/policy.h"

namespace ottava {

/// The products of one layer on one rank, as timing sees them: layers of equal shape share one measurement.
struct ProductShape {
  int64_t tokens = 0, rows = 0, columns = 0;  ///< T, O, K of x [T,K], W [O,K], all local
  fp8::RecipeName recipe = fp8::RecipeName::tensorwise;
};
/// "quantize.linear.float8.auto 8192 x 14336 x 4096 tensorwise": the name of its decision.
std::string decision_name(const ProductShape& shape);

/// Time of the three bf16 products of a layer over that of its FP8 products with everything they cost
/// besides: amax, quantizing x and dy (and both transposed where the weight gradient wants that), and the
/// weight's codes, which are made once per step of `micro_batches` (here of the whole weight: shards make
/// fewer). Best of several runs after one to warm up, on numbers of both signs, on the stream's device, in
/// memory taken and given back.
double measure_float8_speedup(Stream& stream, const ProductShape& shape, int64_t micro_batches);

/// The ratios that decisions hold, for decide_policy(). A shape that they lack throws ConfigError, with the
/// advice to make them again or, of a file, in a run on the GPU.
std::function<std::optional<double>(const fp8::PolicyGemm&, const fp8::Recipe&)> speedups_of(
    const Decisions& decisions, int64_t tokens, const std::string& file);

/// Every distinct shape for which a policy asks whether FP8 is faster.
std::vector<ProductShape> float8_candidates(const fp8::Policy& policy, int64_t tokens);

}  // namespace ottava
