#include <algorithm>

#include "apps/bench/kernel_cases.h"
#include "core/cuda/runtime.h"
#include "core/ops/matmul/matmul.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/swiglu.h"
#include "fp8/quantize.h"
#include "fp8/recipe.h"
#include "fp8/scaled_matmul.h"

namespace ottava {
namespace {

using fp8::Granularity;
using Run = std::function<void(Stream&)>;

fp8::Float8Codes float8_matrix(Workbench& b, Granularity granularity, int64_t rows, int64_t columns) {
  return {b.tensor(DType::e4m3, {rows, columns}),
          b.ones(fp8::scale_dtype(granularity), fp8::scale_shape(granularity, rows, columns))};
}

fp8::ScaleRounding rounding_of(Granularity granularity) {
  return granularity == Granularity::tensor ? fp8::ScaleRounding::none
                                            : fp8::ScaleRounding::down_to_power_of_two;
}

enum class Outputs { straight, both };

Run quantized(Workbench& b, const KernelShapes& k, Granularity granularity, Outputs outputs) {
  const int64_t rows = k.rows(), columns = k.dim;
  fp8::Quantize args{.x = b.tensor(DType::bf16, {rows, columns}),
                     .granularity = granularity,
                     .rounding = rounding_of(granularity),
                     .amax = {},
                     .column_amax = {},
                     .out = float8_matrix(b, granularity, rows, columns),
                     .transposed = {},
                     .counters = {},
                     .non_finite = {}};
  if (outputs == Outputs::both) args.transposed = float8_matrix(b, granularity, columns, rows);
  if (granularity == Granularity::tensor) args.amax = b.zeros(DType::u32, {1});
  if (granularity == Granularity::row && outputs == Outputs::both)
    args.column_amax = b.zeros(DType::u32, {columns});
  return [=](Stream& s) { fp8::quantize(s, args); };
}

Run largest(Workbench& b, const KernelShapes& k) {
  Tensor x = b.tensor(DType::bf16, {k.rows(), k.dim}), out = b.zeros(DType::u32, {1});
  return [=](Stream& s) { fp8::amax(s, x, out); };
}

Run largest_of_columns(Workbench& b, const KernelShapes& k) {
  Tensor x = b.tensor(DType::bf16, {k.rows(), k.dim}), out = b.zeros(DType::u32, {k.dim});
  return [=](Stream& s) { fp8::column_amax(s, x, out); };
}

Run dequantized(Workbench& b, const KernelShapes& k, Granularity granularity) {
  const fp8::Float8Codes x = float8_matrix(b, granularity, k.rows(), k.dim);
  Tensor y = b.tensor(DType::bf16, {k.rows(), k.dim});
  return [=](Stream& s) { fp8::dequantize(s, x, granularity, y); };
}

Run transposed(Workbench& b, const KernelShapes& k) {
  Tensor from = b.tensor(DType::e4m3, {k.ffn, k.dim}), to = b.tensor(DType::e4m3, {k.dim, k.ffn});
  return [=](Stream& s) { fp8::transpose_codes(s, from, to); };
}

fp8::RowOutput row_output(Workbench& b, Granularity granularity, int64_t rows, int64_t columns) {
  return {.granularity = granularity,
          .rounding = rounding_of(granularity),
          .out = float8_matrix(b, granularity, rows, columns)};
}

Run norm_quantized(Workbench& b, const KernelShapes& k, Granularity granularity) {
  auto matrix = [&] { return b.tensor(DType::bf16, {k.rows(), k.dim}); };
  RmsNormForward args{.x = matrix(),
                      .weight = b.tensor(DType::bf16, {k.dim}),
                      .residual = matrix(),
                      .sum = matrix(),
                      .y = {},
                      .rstd = b.tensor(DType::f32, {k.rows()}),
                      .amax = {},
                      .float8 = row_output(b, granularity, k.rows(), k.dim)};
  return [=](Stream& s) { rms_norm_forward(s, args); };
}

Run swiglu_quantized(Workbench& b, const KernelShapes& k, Granularity granularity) {
  SwigluForward args{.gate_up = b.tensor(DType::bf16, {k.rows(), 2 * k.ffn}),
                     .out = {},
                     .amax = {},
                     .float8 = row_output(b, granularity, k.rows(), k.ffn)};
  return [=](Stream& s) { swiglu_forward(s, args); };
}

Run norm_backward_quantized(Workbench& b, Stream& target, const KernelShapes& k, Granularity granularity) {
  auto matrix = [&] { return b.tensor(DType::bf16, {k.rows(), k.dim}); };
  RmsNormBackward args{.dy = matrix(),
                       .x = matrix(),
                       .weight = b.tensor(DType::bf16, {k.dim}),
                       .rstd = b.tensor(DType::f32, {k.rows()}),
                       .dresidual = matrix(),
                       .dx = matrix(),
                       .dweight = b.zeros(DType::f32, {k.dim}),
                       .workspace = b.tensor(DType::f32, rms_norm_workspace(target, k.dim)),
                       .amax = {},
                       .float8 = row_output(b, granularity, k.rows(), k.dim)};
  return [=](Stream& s) { rms_norm_backward(s, args); };
}

Run swiglu_backward_quantized(Workbench& b, const KernelShapes& k, Granularity granularity) {
  auto wide = [&] { return b.tensor(DType::bf16, {k.rows(), 2 * k.ffn}); };
  SwigluBackward args{.dout = b.tensor(DType::bf16, {k.rows(), k.ffn}),
                      .gate_up = wide(),
                      .dgate_up = wide(),
                      .out = {},
                      .amax = {},
                      .float8 = row_output(b, granularity, k.rows(), 2 * k.ffn)};
  return [=](Stream& s) { swiglu_backward(s, args); };
}

Run product(Workbench& b, Stream& target, const KernelShapes& k, Granularity x, Granularity w) {
  fp8::ScaledMatmul args{
      .a = {.rowwise = float8_matrix(b, x, k.rows(), k.dim), .columnwise = {}, .granularity = x},
      .b = {.rowwise = float8_matrix(b, w, k.ffn, k.dim), .columnwise = {}, .granularity = w},
      .out = b.tensor(DType::bf16, {k.rows(), k.ffn})};
  args.workspace =
      b.tensor(DType::u8, {std::max<int64_t>(fp8::scaled_matmul_workspace_bytes(target, args), 1)});
  Tensor inner =
      b.tensor(DType::u8, {std::max<int64_t>(fp8::scaled_matmul_inner_workspace_bytes(target, args), 1)});
  return [=](Stream& s) {
    if (s.type() != DeviceType::meta) set_matmul_workspace(s, inner);
    fp8::scaled_matmul(s, args);
  };
}

bool multiplies(Device device, fp8::RecipeName recipe) {
  if (device.type != DeviceType::cuda) return true;
  return std::ranges::count(fp8::recipes_of_compute_capability(cuda::compute_capability(device.index)),
                            recipe) > 0;
}

}  // namespace

std::vector<KernelCase> float8_kernel_cases(const KernelShapes& k) {
  using B = Workbench;
  using S = Stream;
  std::vector<KernelCase> cases = {
      {"amax", Bound::copy, [=](B& b, S&) { return largest(b, k); }},
      {"column_amax", Bound::copy, [=](B& b, S&) { return largest_of_columns(b, k); }},
      {"transpose_codes", Bound::copy, [=](B& b, S&) { return transposed(b, k); }},
  };
  struct Scales {
    const char* name;
    Granularity granularity;
  };
  for (auto [name, g] :
       {Scales{"tensorwise", Granularity::tensor}, Scales{"rowwise", Granularity::row},
        Scales{"1x128", Granularity::block_1x128}, Scales{"128x128", Granularity::block_128x128},
        Scales{"1x32", Granularity::block_1x32}}) {
    auto add = [&](const std::string& what, std::function<Run(B&)> make) {
      cases.push_back({what, Bound::copy, [make](B& b, S&) { return make(b); }});
    };
    const std::string scales = name;
    add("quantize " + scales, [k, g = g](B& b) { return quantized(b, k, g, Outputs::straight); });
    add("quantize " + scales + " + transpose",
        [k, g = g](B& b) { return quantized(b, k, g, Outputs::both); });
    add("dequantize " + scales, [k, g = g](B& b) { return dequantized(b, k, g); });
    if (g != Granularity::row && g != Granularity::block_1x128) continue;
    add("rms_norm forward + residual + quantize " + scales,
        [k, g = g](B& b) { return norm_quantized(b, k, g); });
    add("swiglu forward + quantize " + scales, [k, g = g](B& b) { return swiglu_quantized(b, k, g); });
    cases.push_back({"rms_norm backward + residual + quantize " + scales, Bound::copy,
                     [k, g = g](B& b, S& s) { return norm_backward_quantized(b, s, k, g); }});
    add("swiglu backward + quantize " + scales,
        [k, g = g](B& b) { return swiglu_backward_quantized(b, k, g); });
  }
  return cases;
}

std::vector<KernelCase> float8_product_cases(const KernelShapes& k, Device device) {
  struct Scales {
    const char* name;
    fp8::RecipeName recipe;
    Granularity x, w;
  };
  std::vector<KernelCase> cases;
  for (const Scales& s :
       {Scales{"tensorwise", fp8::RecipeName::tensorwise, Granularity::tensor, Granularity::tensor},
        Scales{"rowwise", fp8::RecipeName::rowwise, Granularity::row, Granularity::row},
        Scales{"blockwise", fp8::RecipeName::blockwise, Granularity::block_1x128, Granularity::block_128x128},
        Scales{"mxfp8", fp8::RecipeName::mxfp8, Granularity::block_1x32, Granularity::block_1x32}}) {
    if (!multiplies(device, s.recipe)) continue;
    cases.push_back({std::string("matmul fp8 ") + s.name, Bound::gemm,
                     [=](Workbench& b, Stream& target) { return product(b, target, k, s.x, s.w); }});
  }
  return cases;
}

}  // namespace ottava
