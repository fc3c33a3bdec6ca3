#include "fp8/step_amax.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/run_op.h"
#include "fp8/step_amax_kernels.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kFold = "fold_amax", kFlag = "flag_non_finite", kPoison = "poison_if_raised";

void fold_on_cpu(const FoldAmax& a) {
  uint32_t *from = a.current.as<uint32_t>(), *to = a.largest.as<uint32_t>();
  for (int64_t i = 0; i < a.current.numel(); ++i) {
    to[i] = std::max(to[i], from[i]);
    from[i] = 0;
  }
}

void flag_on_cpu(const FlagNonFinite& a) {
  for (int64_t i = 0; i < a.amaxes.numel(); ++i) {
    if (a.amaxes.as<uint32_t>()[i] >= kInfinityBits) a.flags.as<uint32_t>()[i] = 1;
  }
}

void poison_on_cpu(const Tensor& flags, const Tensor& sum_of_squares) {
  const uint32_t* flag = flags.as<uint32_t>();
  if (std::any_of(flag, flag + flags.numel(), [](uint32_t f) { return f != 0; }))
    *sum_of_squares.as<double>() = std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

void fold_amax(Stream& stream, const FoldAmax& a) {
  check_tensor(kFold, "current", a.current, DType::u32, {a.current.numel()});
  check_tensor(kFold, "largest", a.largest, DType::u32, a.current.shape);
  run_op(stream, moving(kFold, 4 * a.current.bytes()), fold_amax, fold_on_cpu, cuda::fold_amax, a);
}

void flag_non_finite(Stream& stream, const FlagNonFinite& a) {
  check_tensor(kFlag, "amaxes", a.amaxes, DType::u32, {a.amaxes.numel()});
  check_tensor(kFlag, "flags", a.flags, DType::u32, a.amaxes.shape);
  run_op(stream, moving(kFlag, 2 * a.amaxes.bytes()), flag_non_finite, flag_on_cpu, cuda::flag_non_finite, a);
}

void poison_if_raised(Stream& stream, const Tensor& flags, const Tensor& sum_of_squares) {
  check_tensor(kPoison, "flags", flags, DType::u32, {flags.numel()});
  check_tensor(kPoison, "sum_of_squares", sum_of_squares, DType::f64, {1});
  run_op(stream, moving(kPoison, flags.bytes()), poison_if_raised, poison_on_cpu, cuda::poison_if_raised,
         flags, sum_of_squares);
}

}  // namespace ottava::fp8
