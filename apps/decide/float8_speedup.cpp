#include "apps/decide/float8_speedup.h"

#include <algorithm>
#include <charconv>

#include "apps/decide/workbench.h"
#include "core/ops/matmul/matmul.h"
#include "fp8/quantize_operand.h"
#include "fp8/scaled_matmul.h"

namespace ottava {
namespace {

fp8::Float8Codes codes(Workbench& scratch, const fp8::OperandRecipe& recipe, Shape shape) {
  return {scratch.tensor(recipe.format, shape),
          scratch.tensor(fp8::scale_dtype(recipe.granularity),
                         fp8::scale_shape(recipe.granularity, shape.rows(), shape.cols()))};
}

/// What making x, dy or w takes: for the products that contract its columns, its rows, or for both.
enum class Contracted { columns, rows, both };
fp8::QuantizeOperand operand(Workbench& scratch, const fp8::OperandRecipe& recipe, const Tensor& values,
                             Contracted contracted) {
  fp8::QuantizeOperand out{.x = values,
                           .out = {.granularity = recipe.granularity},
                           .rounding = recipe.rounding,
                           .slots = {.amax = scratch.zeros(DType::u32, {1})},
                           .column_amax = scratch.zeros(DType::u32, {values.cols()})};
  out.slots.scale_amax = out.slots.amax;
  if (contracted != Contracted::rows) out.out.rowwise = codes(scratch, recipe, values.shape);
  if (contracted != Contracted::columns)
    out.out.columnwise = codes(scratch, recipe, {values.cols(), values.rows()});
  return out;
}

}  // namespace

std::string decision_name(const ProductShape& s) {
  return fmt::format("quantize.linear.float8.auto {} x {} x {} {}", s.tokens, s.rows, s.columns,
                     fp8::name_of(s.recipe));
}

double measure_float8_speedup(Stream& stream, const ProductShape& s, int64_t micro_batches) {
  Workbench scratch(stream.device());
  const fp8::Recipe recipe = fp8::make_recipe(s.recipe);
  const Tensor x = scratch.tensor(DType::bf16, {s.tokens, s.columns}),
               w = scratch.tensor(DType::bf16, {s.rows, s.columns}),
               dy = scratch.tensor(DType::bf16, {s.tokens, s.rows}),
               y = scratch.tensor(DType::bf16, {s.tokens, s.rows}),
               dx = scratch.tensor(DType::bf16, {s.tokens, s.columns}),
               dw = scratch.tensor(DType::f32, {s.rows, s.columns});
  const Matmul plain[3] = {
      {.kind = MatmulKind::forward, .a = x, .b = w, .out = y},
      {.kind = MatmulKind::input_gradient, .a = dy, .b = w, .out = dx},
      {.kind = MatmulKind::weight_gradient, .a = dy, .b = x, .out = dw, .accumulate = true}};
  const int products = recipe.fp8_products();
  const Contracted activations = recipe.weight_gradient.is_fp8 ? Contracted::both : Contracted::columns;
  const fp8::QuantizeOperand qx = operand(scratch, recipe.forward.a, x, activations),
                             qdy = operand(scratch, recipe.input_gradient.a, dy, activations);
  // Where both products take the weight alike, it is read once for both.
  const bool is_read_once = recipe.forward.b == recipe.input_gradient.b;
  const fp8::QuantizeOperand qw =
      operand(scratch, recipe.forward.b, w, is_read_once ? Contracted::both : Contracted::columns);
  std::optional<fp8::QuantizeOperand> qwt;
  if (!is_read_once) qwt = operand(scratch, recipe.input_gradient.b, w, Contracted::rows);
  fp8::ScaledMatmul scaled[3] = {
      {.kind = MatmulKind::forward, .a = qx.out, .b = qw.out, .out = y},
      {.kind = MatmulKind::input_gradient, .a = qdy.out, .b = (qwt ? *qwt : qw).out, .out = dx},
      {.kind = MatmulKind::weight_gradient, .a = qdy.out, .b = qx.out, .out = dw, .accumulate = true}};
  int64_t own = 0, inner = 0;
  for (const Matmul& m : plain) inner = std::max(inner, matmul_workspace_bytes(stream, m));
  for (int i = 0; i < products; ++i) {
    own = std::max(own, fp8::scaled_matmul_workspace_bytes(stream, scaled[i]));
    inner = std::max(inner, fp8::scaled_matmul_inner_workspace_bytes(stream, scaled[i]));
  }
  set_matmul_workspace(stream, scratch.tensor(DType::u8, {inner}));
  const Tensor workspace = scratch.tensor(DType::u8, {own});
  for (fp8::ScaledMatmul& m : scaled) m.workspace = workspace;
  const double weights = best_milliseconds(stream, [&] {
    quantize_operand(stream, qw);
    if (qwt) quantize_operand(stream, *qwt);
  });
  const double bf16 = best_milliseconds(stream, [&] {
    for (const Matmul& m : plain) matmul(stream, m);
  });
  const double fp8 = best_milliseconds(stream, [&] {
    quantize_operand(stream, qx);
    quantize_operand(stream, qdy);
    for (int i = 0; i < products; ++i) fp8::scaled_matmul(stream, scaled[i]);
    if (!recipe.weight_gradient.is_fp8) matmul(stream, plain[2]);
  });
  stream.synchronize();
  return bf16 / (fp8 + weights / static_cast<double>(micro_batches));
}

std::function<std::optional<double>(const fp8::PolicyGemm&, const fp8::Recipe&)> speedups_of(
    const Decisions& decisions, int64_t tokens, const std::string& file) {
  return [decisions, tokens, file](const fp8::PolicyGemm& gemm,
                                   const fp8::Recipe& recipe) -> std::optional<double> {
    const std::string name = decision_name({tokens, gemm.local_rows(), gemm.local_columns, recipe.name});
    const Decisions::Entry* entry = decisions.find(name);
    if (!entry) {
      fail<ConfigError>("decisions", "there is no measurement '{}' for {}{}", name, gemm.name,
                        file.empty()
                            ? ": measure again with --redecide"
                            : fmt::format(" in {}: take quantize.linear.float8.auto_decisions from a "
                                          "run of this model, batch and layout on the GPU",
                                          file));
    }
    double ratio = 0;
    const char* end = entry->value.data() + entry->value.size();
    if (auto [stop, error] = std::from_chars(entry->value.data(), end, ratio);
        error != std::errc{} || stop != end || !(ratio > 0)) {
      fail<ConfigError>("decisions", "'{}' is '{}', expected how many times faster FP8 is", name,
                        entry->value);
    }
    return ratio;
  };
}

std::vector<ProductShape> float8_candidates(const fp8::Policy& policy, int64_t tokens) {
  std::vector<ProductShape> shapes;
  for (const fp8::GemmDecision& d : policy.decisions) {
    if (!d.is_measured) continue;
    const ProductShape shape{tokens, d.gemm.local_rows(), d.gemm.local_columns, d.recipe->name};
    const std::string name = decision_name(shape);
    if (std::none_of(shapes.begin(), shapes.end(),
                     [&](const ProductShape& s) { return decision_name(s) == name; }))
      shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace ottava
