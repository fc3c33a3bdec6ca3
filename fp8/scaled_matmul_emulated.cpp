#include "fp8/scaled_matmul_emulated.h"

#include "core/round_up.h"
#include "core/threads/parallel_for.h"
#include "fp8/quantize_kernels.h"
#include "fp8/quantize_threads.h"
#include "fp8/scaled_matmul_kernels.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kEmulatedOp = "scaled_matmul";
using Contraction = ProductOperand::Contraction;

int64_t aligned(int64_t bytes) { return round_up(bytes, 64); }

/// The bf16 product of the operands' values in `memory`, its result where the scaled one belongs.
Matmul product_in(const ScaledProduct& args, uint8_t* memory) {
  const int64_t b = aligned(args.a.matrix.codes.numel() * 2);
  const bool a_outer = args.a.contraction == Contraction::outer;
  return {.kind = a_outer                                    ? MatmulKind::weight_gradient
                  : args.b.contraction == Contraction::inner ? MatmulKind::forward
                                                             : MatmulKind::input_gradient,
          .a = {memory, DType::bf16, args.a.matrix.codes.shape},
          .b = {memory ? memory + b : nullptr, DType::bf16, args.b.matrix.codes.shape},
          .out = args.out,
          .accumulate = args.accumulate,
          .out_columns = args.out_columns};
}

/// Whether nothing is left to do after the product: block scales are in the operands, and one scale goes into
/// the product.
enum class Scaling { in_operands, in_product, afterwards };
Scaling scaling_of(Stream& stream, const ScaledProduct& args) {
  if (traits(args.a.granularity).has_blocks()) return Scaling::in_operands;
  const bool one = args.a.matrix.scale_inverse.numel() == 1 && args.b.matrix.scale_inverse.numel() == 1;
  return one && matmul_takes_scale(stream, product_in(args, nullptr)) ? Scaling::in_product
                                                                      : Scaling::afterwards;
}
/// Sums that are scaled afterwards wait in the result's memory, if that is f32 and may be used.
int64_t sums_bytes(Stream& stream, const ScaledProduct& args) {
  const bool fits = !args.accumulate && args.out.dtype == DType::f32;
  return fits || scaling_of(stream, args) != Scaling::afterwards ? 0 : aligned(args.out_rows().numel() * 4);
}
int64_t operands_bytes(const ScaledProduct& args) {
  return aligned(args.a.matrix.codes.numel() * 2) + aligned(args.b.matrix.codes.numel() * 2);
}

/// A code times a power of two stays a normal bf16 number when the smallest code does and the largest does
/// not overflow; products of zeros and of subnormals would depend on the machine. One power more is what
/// amaxes within 1/8 of the end of bf16 have: their own codes are lower, and one that is rounded up to 2^128
/// is the infinity that bf16 makes of it, which makes every rank skip the step.
void check_block_scales(std::string_view name, const ProductOperand& o) {
  const Format& f = format_of(o.matrix.codes.dtype);
  const int lowest = -126 + f.bias + f.mantissa_bits - 1, highest = f.bias == 7 ? 120 : 113;
  auto check_one = [&](float inverse) {
    const uint32_t u = std::bit_cast<uint32_t>(inverse);
    const int exponent = static_cast<int>(u >> 23) - 127;
    if ((u & 0x807fffffu) != 0 || u == 0) {
      fail<NumericsError>(
          kEmulatedOp,
          "a {} scale of {} is {}, not a power of two: the CPU multiplies block scales exactly or not at "
          "all; quantize with rounding down_to_power_of_two",
          fp8::name_of(o.granularity), name, inverse);
    }
    if (exponent < lowest || exponent > highest) {
      fail<NumericsError>(
          kEmulatedOp,
          "a {} scale of {} is 2^{}, outside of [2^{}, 2^{}], which is what finite bf16 values have in {}",
          fp8::name_of(o.granularity), name, exponent, lowest, highest,
          ottava::name_of(o.matrix.codes.dtype));
    }
  };
  const Shape shape = o.matrix.codes.shape;
  const GranularityTraits& t = traits(o.granularity);
  for (int64_t r = 0; r < shape.rows(); r += t.block_rows) {
    for (int64_t c = 0; c < shape.cols(); c += t.block_columns) {
      const int64_t i = scale_index(o.granularity, shape, r, c);
      check_one(t.scale_dtype == DType::e8m0 ? decode_e8m0(o.matrix.scale_inverse.as<uint8_t>()[i])
                                             : o.matrix.scale_inverse.as<float>()[i]);
    }
  }
}

/// Values of the codes; with block scales the values that they stand for.
void widen(Stream& stream, std::string_view name, const ProductOperand& o, const Tensor& to) {
  if (stream.type() == DeviceType::cuda) {
    if (traits(o.granularity).has_blocks()) return cuda::dequantize(stream, o.matrix, o.granularity, to);
    return cuda::dequantize(stream, {o.matrix.codes, {}}, Granularity::tensor, to);
  }
  static const float kOne = 1;
  if (traits(o.granularity).has_blocks()) {
    check_block_scales(name, o);
    cpu::dequantize(o.matrix, o.granularity, to);
  } else {
    cpu::dequantize({o.matrix.codes, view_of(&kOne, {1})}, Granularity::tensor, to);
  }
}

void scale_on_cpu(const ScaledProduct& args, const MatrixRows& sums) {
  auto kernel = cpu::scaled_matmul_kernels().scale_row[args.out.dtype];
  const float *a = args.a.matrix.scale_inverse.as<float>(), *b = args.b.matrix.scale_inverse.as<float>();
  const bool a_rows = args.a.matrix.scale_inverse.numel() > 1,
             b_rows = args.b.matrix.scale_inverse.numel() > 1;
  const MatrixRows out = args.out_rows();
  parallel_for(out.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const RowScales scales{.row = a_rows ? a[m] : a[0], .columns = b_rows ? b : nullptr, .column = b[0]};
      kernel(static_cast<const float*>(sums.at(m, 0)), out.cols, scales, args.accumulate, out.at(m, 0));
    }
  });
}

}  // namespace

int64_t emulated_workspace_bytes(Stream& stream, const ScaledProduct& args) {
  return operands_bytes(args) + sums_bytes(stream, args);
}

Matmul emulated_product(Stream& stream, const ScaledProduct& args, uint8_t* memory) {
  static const float kSome = 1;  // that there is one decides about the workspace
  Matmul inner = product_in(args, memory);
  const Scaling scaling = scaling_of(stream, args);
  if (scaling == Scaling::in_product) inner.scale = &kSome;
  if (scaling != Scaling::afterwards) return inner;
  inner.accumulate = false;
  if (sums_bytes(stream, args) > 0) {
    inner.out = {memory ? memory + operands_bytes(args) : nullptr, DType::f32, args.out_rows().shape()};
    inner.out_columns = {};
  }
  return inner;
}

void scaled_matmul_emulated(Stream& stream, const ScaledProduct& args) {
  const Scaling scaling = scaling_of(stream, args);
  Matmul inner = emulated_product(stream, args, args.workspace.as<uint8_t>());
  widen(stream, "a", args.a, inner.a);
  widen(stream, "b", args.b, inner.b);
  float scale = 1;
  if (scaling == Scaling::in_product) {
    scale = *args.a.matrix.scale_inverse.as<float>() * *args.b.matrix.scale_inverse.as<float>();
    inner.scale = &scale;
  }
  matmul(stream, inner);
  if (scaling != Scaling::afterwards) return;
  const MatrixRows sums = rows_of(kEmulatedOp, inner.out, inner.out_columns);
  stream.type() == DeviceType::cuda ? cuda::scale_result(stream, args, sums) : scale_on_cpu(args, sums);
}

}  // namespace ottava::fp8
