#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "core/contains.h"
#include "fp8/recipe.h"
#include "fp8/scaled_matmul.h"
#include "tests/fp8/exact_product.h"
#include "tests/fp8/reference.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

// Operands of scaled products on a device with what they mean in FP64, and the call.
namespace ottava::test::scaled_matmul_operands {

using namespace ottava::fp8;
/// Where the contraction lies in memory.
enum class Contraction { inner, outer };

/// A quantized matrix [outer, contraction], in memory as it is or transposed, with its FP64 meaning.
struct Operand {
  Operand(Stream& stream, const std::vector<float>& values, int64_t outer, int64_t inner,
          ReferenceRecipe recipe, Contraction contraction = Contraction::inner)
      : rows(contraction == Contraction::inner ? outer : inner),
        cols(contraction == Contraction::inner ? inner : outer),
        bytes(stream, recipe.format, {rows, cols}),
        inverse(stream, scale_dtype(recipe.granularity), scale_shape(recipe.granularity, rows, cols)),
        granularity(recipe.granularity),
        contraction(contraction) {
    const auto stored = contraction == Contraction::inner ? values : test::transposed(values, outer, inner);
    DeviceBuffer x(stream, DType::bf16, {rows, cols}, stored), amax_1(stream, DType::u32, {1});
    amax_1.upload_as<uint32_t>(std::array{largest_bits(x.floats())});
    Quantize args{.x = x,
                  .granularity = recipe.granularity,
                  .rounding = recipe.power_of_two ? ScaleRounding::down_to_power_of_two : ScaleRounding::none,
                  .out = {bytes, inverse}};
    if (recipe.granularity == Granularity::tensor) args.amax = amax_1;
    quantize(stream, args);
    const auto q = reference_quantize(x.floats(), rows, cols, recipe);
    const auto table = finite_values(recipe.format);
    for (size_t i = 0; i < q.codes.size(); ++i) {
      const double v = table[q.codes[i] & 0x7f] * static_cast<double>(q.inverses[i]);
      exact.push_back(q.codes[i] & 0x80 ? -v : v);
    }
    if (contraction == Contraction::outer) exact = test::transposed(exact, rows, cols);
  }
  /// The matrix for a product that contracts its columns (x in forward, dy in dx), or its rows.
  Float8Tensor over_columns() const { return {{bytes, inverse}, {}, granularity}; }
  Float8Tensor over_rows() const {
    if (contraction == Contraction::inner) return {{}, {bytes, inverse}, granularity};
    return {{bytes, inverse}, {}, granularity};
  }
  int64_t rows, cols;
  DeviceBuffer bytes, inverse;
  Granularity granularity;
  Contraction contraction;
  Values exact;  ///< [outer, contraction]
};

/// A product of a and b; its kind says whether it contracts rows or columns of each.
inline ScaledMatmul product(MatmulKind kind, const Operand& a, const Operand& b, bool emulate = false) {
  return {.kind = kind,
          .a = kind == MatmulKind::weight_gradient ? a.over_rows() : a.over_columns(),
          .b = kind == MatmulKind::forward ? b.over_columns() : b.over_rows(),
          .emulate = emulate};
}

/// Runs the product with the workspaces that it asks for.
inline void run_with_workspaces(Stream& stream, ScaledMatmul args) {
  DeviceBuffer workspace(stream, DType::u8, {scaled_matmul_workspace_bytes(stream, args)});
  // The most that a GPU may use is far more than these products need, and slow to fill without a GPU.
  const int64_t inner_bytes =
      std::min(scaled_matmul_inner_workspace_bytes(stream, args) + 64, int64_t{1} << 20);
  DeviceBuffer inner(stream, DType::u8, {inner_bytes});
  set_matmul_workspace(stream, inner);
  args.workspace = workspace;
  scaled_matmul(stream, args);
}

inline std::vector<float> run(Stream& stream, ScaledMatmul args, DType dtype, int64_t m, int64_t n,
                              const std::vector<float>* before = nullptr) {
  DeviceBuffer out(stream, dtype, {m, n});
  if (before) out.upload(*before);
  args.out = out;
  args.accumulate = before != nullptr;
  run_with_workspaces(stream, args);
  return out.floats();
}

/// Calls body(stream, emulate) for every device, and a second time for a GPU that emulates.
template <class Body>
void for_each_way(Body&& body) {
  for_each_device([&](Stream& stream) {
    body(stream, false);
    INFO("emulated");
    if (stream.type() == DeviceType::cuda) body(stream, true);
  });
}
/// The tolerance of a product over k elements. Tensor cores of sm_89 and sm_90 cut each term of an
/// instruction, and the sum before it, at 2^-13 of the largest of them: 33 k / 32 errors of up to 2^-13 of
/// partial sums, which are at most 1.6 / sqrt(k) of the magnitude where terms have either sign. As a random
/// walk, six times its deviation is 3 2^-13 of the magnitude for any k; promoted sums have less.
inline Tolerance product_tolerance(Stream& stream, bool emulate, DType dtype, int operations, int64_t k) {
  Tolerance t = tolerance(dtype, operations, k);
  if (stream.type() == DeviceType::cuda && !emulate && cuda::compute_capability(stream.device().index) < 100)
    t.arithmetic += 3 * 0x1p-13;
  return t;
}

/// True where the GPU cannot multiply with such scales; checks that it then says so.
inline bool refuses(Stream& stream, ScaledMatmul args, int64_t m, int64_t n) {
  if (stream.type() != DeviceType::cuda || args.emulate) return false;
  const std::vector<RecipeName> native =
      recipes_of_compute_capability(cuda::compute_capability(stream.device().index));
  const Granularity g = std::max(args.a.granularity, args.b.granularity);
  if (contains(native, recipe_with(g))) return false;
  CHECK_THROWS_WITH(
      run(stream, args, DType::f32, m, n),
      Catch::Matchers::Contains(fmt::format("does not multiply with scales per {}", name_of(g))));
  return true;
}

}  // namespace ottava::test::scaled_matmul_operands
