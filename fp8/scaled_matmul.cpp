#include "fp8/scaled_matmul.h"

#include "core/cost.h"
#include "core/ops/check.h"
#include "core/parallel_for.h"
#include "fp8/quantize_on_cpu.h"
#include "fp8/scaled_matmul_kernels.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kOp = "scaled_matmul";
using Contraction = ScaledOperand::Contraction;

struct Extents {
  int64_t m, n, k;
};
int64_t outer_of(const ScaledOperand& o) {
  return o.contraction == Contraction::inner ? o.matrix.bytes.rows() : o.matrix.bytes.cols();
}
int64_t contraction_of(const ScaledOperand& o) {
  return o.contraction == Contraction::inner ? o.matrix.bytes.cols() : o.matrix.bytes.rows();
}
Extents extents_of(const ScaledMatmul& a) { return {outer_of(a.a), outer_of(a.b), contraction_of(a.a)}; }

bool in_blocks(Granularity g) {
  return g == Granularity::block_1x128 || g == Granularity::block_128x128 || g == Granularity::block_1x32;
}
bool pairs(Granularity a, Granularity b) {
  switch (a) {
    case Granularity::tensor:
    case Granularity::row:
      return b == Granularity::tensor || b == Granularity::row;
    case Granularity::block_1x128:
      return b == Granularity::block_1x128 || b == Granularity::block_128x128;
    case Granularity::block_128x128:
      return b == Granularity::block_1x128;
    default:
      return b == Granularity::block_1x32;
  }
}

void check_operand(std::string_view name, const ScaledOperand& o) {
  const Tensor& bytes = o.matrix.bytes;
  if (bytes.shape.rank() != 2) fail<ShapeError>(kOp, "{} is {}, expected a matrix", name, describe(bytes));
  format_of(bytes.dtype);
  check_tensor(kOp, fmt::format("{}.scale_inverse", name), o.matrix.scale_inverse, scale_dtype(o.granularity),
               scale_shape(o.granularity, bytes.rows(), bytes.cols()));
  const bool turns = o.granularity == Granularity::tensor || o.granularity == Granularity::block_128x128;
  if (o.contraction == Contraction::outer && !turns) {
    fail<ShapeError>(
        kOp,
        "{} has its contraction outside, where its {} scales do not run along it: quantize the transpose",
        name, fp8::name_of(o.granularity));
  }
}

void check_multiple(std::string_view what, int64_t extent, int64_t of) {
  if (extent % of == 0 && extent > 0) return;
  fail<ShapeError>(kOp, "{} is {}, not a multiple of {}: {}/{} = {}; run this product in bf16 or pad it",
                   what, extent, of, extent, of, static_cast<double>(extent) / static_cast<double>(of));
}

void check(const ScaledMatmul& args) {
  check_operand("a", args.a);
  check_operand("b", args.b);
  if (args.a.matrix.bytes.dtype == DType::e5m2 && args.b.matrix.bytes.dtype == DType::e5m2) {
    fail<ShapeError>(kOp, "a and b are both e5m2: at most one operand may be");
  }
  if (!pairs(args.a.granularity, args.b.granularity)) {
    fail<ShapeError>(kOp, "scales per {} of a and per {} of b do not go together",
                     fp8::name_of(args.a.granularity), fp8::name_of(args.b.granularity));
  }
  if (args.a.contraction == Contraction::outer && args.b.contraction == Contraction::inner) {
    fail<ShapeError>(
        kOp, "a has its contraction outside and b inside: no layer needs that, transpose one of them");
  }
  const Extents e = extents_of(args);
  if (contraction_of(args.b) != e.k) {
    fail<ShapeError>(kOp, "contractions differ: a {}, b {} ({} vs {})", to_string(args.a.matrix.bytes.shape),
                     to_string(args.b.matrix.bytes.shape), e.k, contraction_of(args.b));
  }
  check_multiple("outer extent of a", e.m, 16);
  check_multiple("outer extent of b", e.n, 16);
  check_multiple("the contraction", e.k, args.a.granularity == Granularity::block_1x32 ? 32 : 16);
  check_float(kOp, "out", args.out);
  check_tensor(kOp, "out", args.out, args.out.dtype, {e.m, e.n});
  if (args.accumulate && args.out.dtype != DType::f32) {
    fail<ShapeError>(kOp, "out is {}, accumulating needs f32", describe(args.out));
  }
}

// What the CPU puts into its workspace.
struct Workspace {
  int64_t a, b, sums, total;  ///< offsets in bytes
};
int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
/// With scales in the operands and nothing left for the result, or with the result's memory to hold the sums.
bool needs_sums(const ScaledMatmul& args) {
  if (in_blocks(args.a.granularity)) return false;
  return args.accumulate || args.out.dtype != DType::f32;
}
Workspace workspace_of(const ScaledMatmul& args) {
  const int64_t a = aligned(args.a.matrix.bytes.numel() * 2), b = aligned(args.b.matrix.bytes.numel() * 2);
  return {0, a, a + b, a + b + (needs_sums(args) ? aligned(args.out.numel() * 4) : 0)};
}

Matmul inner_product(const ScaledMatmul& args, uint8_t* memory) {
  const Workspace w = workspace_of(args);
  auto at = [&](int64_t offset) -> void* { return memory ? memory + offset : nullptr; };
  Matmul inner{.a = {at(w.a), DType::bf16, args.a.matrix.bytes.shape},
               .b = {at(w.b), DType::bf16, args.b.matrix.bytes.shape},
               .out = args.out,
               .accumulate = args.accumulate};
  if (args.a.contraction == Contraction::outer) {
    inner.kind = MatmulKind::weight_gradient;
  } else {
    inner.kind = args.b.contraction == Contraction::inner ? MatmulKind::forward : MatmulKind::input_gradient;
  }
  if (!in_blocks(args.a.granularity)) {
    if (needs_sums(args)) inner.out = {at(w.sums), DType::f32, args.out.shape};
    inner.accumulate = false;
  }
  return inner;
}

/// A code times a power of two stays a normal bf16 number when the smallest and the largest code do; products
/// of zeros and of subnormals would depend on the machine.
void check_block_scales(std::string_view name, const ScaledOperand& o) {
  const Format& f = format_of(o.matrix.bytes.dtype);
  const int lowest = -126 + f.bias + f.mantissa_bits - 1, highest = f.bias == 7 ? 119 : 112;
  auto check_one = [&](float inverse) {
    const uint32_t u = std::bit_cast<uint32_t>(inverse);
    const int exponent = static_cast<int>(u >> 23) - 127;
    if ((u & 0x807fffffu) != 0 || u == 0) {
      fail<NumericsError>(
          kOp,
          "a {} scale of {} is {}, not a power of two: the CPU multiplies block scales exactly or not at "
          "all; quantize with rounding down_to_power_of_two",
          fp8::name_of(o.granularity), name, inverse);
    }
    if (exponent < lowest || exponent > highest) {
      fail<NumericsError>(
          kOp,
          "a {} scale of {} is 2^{}, outside of [2^{}, 2^{}] where {} times scale is a normal bf16 number",
          fp8::name_of(o.granularity), name, exponent, lowest, highest,
          ottava::name_of(o.matrix.bytes.dtype));
    }
  };
  const Shape shape = o.matrix.bytes.shape;
  const int64_t high = o.granularity == Granularity::block_128x128 ? 128 : 1,
                wide = scale_block(o.granularity, shape.cols());
  for (int64_t r = 0; r < shape.rows(); r += high) {
    for (int64_t c = 0; c < shape.cols(); c += wide) {
      const int64_t i = scale_index(o.granularity, shape, r, c);
      check_one(o.granularity == Granularity::block_1x32
                    ? decode_e8m0(o.matrix.scale_inverse.as<uint8_t>()[i])
                    : o.matrix.scale_inverse.as<float>()[i]);
    }
  }
}

void widen(std::string_view name, const ScaledOperand& o, const Tensor& to) {
  static const float kOne = 1;
  if (in_blocks(o.granularity)) {
    check_block_scales(name, o);
    cpu::dequantize(o.matrix, o.granularity, to);
  } else {
    cpu::dequantize({o.matrix.bytes, view_of(&kOne, {1})}, Granularity::tensor, to);
  }
}

void scale_result(const ScaledMatmul& args, const Tensor& sums) {
  auto kernel = cpu::scaled_matmul_kernels().scale_row[args.out.dtype];
  const float *a = args.a.matrix.scale_inverse.as<float>(), *b = args.b.matrix.scale_inverse.as<float>();
  const bool a_rows = args.a.granularity == Granularity::row, b_rows = args.b.granularity == Granularity::row;
  const int64_t n = args.out.cols();
  const auto size = static_cast<int64_t>(size_of(args.out.dtype));
  parallel_for(args.out.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const RowScales scales{.row = a_rows ? a[m] : a[0], .columns = b_rows ? b : nullptr, .column = b[0]};
      kernel(sums.as<float>() + m * n, n, scales, args.accumulate,
             static_cast<uint8_t*>(args.out.data) + m * n * size);
    }
  });
}

void scaled_matmul_on_cpu(Stream& stream, const ScaledMatmul& args) {
  const int64_t need = workspace_of(args).total;
  if (args.workspace.dtype != DType::u8 || args.workspace.bytes() < need) {
    fail<MemoryError>(kOp, "workspace is {}, expected u8 [{}]: scaled_matmul_workspace_bytes tells",
                      describe(args.workspace), need);
  }
  const Matmul inner = inner_product(args, args.workspace.as<uint8_t>());
  widen("a", args.a, inner.a);
  widen("b", args.b, inner.b);
  matmul(stream, inner);
  if (!in_blocks(args.a.granularity)) scale_result(args, inner.out);
}

}  // namespace

void scaled_matmul(Stream& stream, const ScaledMatmul& args) {
  check(args);
  switch (stream.type()) {
    case DeviceType::cpu:
      return scaled_matmul_on_cpu(stream, args);
    case DeviceType::cuda:
      return cuda::scaled_matmul(stream, args);
    case DeviceType::meta: {
      const Extents e = extents_of(args);
      double bytes = static_cast<double>(args.out.bytes()) * (args.accumulate ? 2 : 1);
      for (const ScaledOperand* o : {&args.a, &args.b}) {
        bytes += static_cast<double>(o->matrix.bytes.bytes() + o->matrix.scale_inverse.bytes());
      }
      stream.recorder().need_workspace(scaled_matmul_inner_workspace_bytes(stream, args));
      stream.recorder().record(
          {.op = kOp,
           .precision = Precision::fp8,
           .flops = 2.0 * static_cast<double>(e.m) * static_cast<double>(e.n) * static_cast<double>(e.k),
           .bytes = bytes});
    }
  }
}

int64_t scaled_matmul_workspace_bytes(Stream& stream, const ScaledMatmul& args) {
  check(args);
  return stream.target().type == DeviceType::cuda ? 0 : workspace_of(args).total;
}

int64_t scaled_matmul_inner_workspace_bytes(Stream& stream, const ScaledMatmul& args) {
  check(args);
  return matmul_workspace_bytes(stream, inner_product(args, nullptr));
}

}  // namespace ottava::fp8
