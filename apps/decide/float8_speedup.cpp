#include "apps/decide/float8_speedup.h"

#include <algorithm>
#include <charconv>

#include "apps/decide/workbench.h"
#include "core/ops/matmul/matmul.h"
#include "fp8/scaled_matmul.h"

namespace ottava {
namespace {

fp8::Float8Codes quantized(Workbench& scratch, const fp8::OperandRecipe& recipe, Shape shape) {
  return {scratch.tensor(recipe.format, shape),
          scratch.tensor(fp8::scale_dtype(recipe.granularity),
                         fp8::scale_shape(recipe.granularity, shape.rows(), shape.cols()))};
}

/// x or dy: measured and quantized for the product along its columns and, if wanted, for the weight gradient.
class Operand {
 public:
  Operand(Workbench& scratch, const fp8::OperandRecipe& recipe, const Tensor& values, bool turned)
      : recipe_(recipe), values_(values) {
    bytes_ = quantized(scratch, recipe, values.shape);
    if (turned) turned_ = quantized(scratch, recipe, {values.cols(), values.rows()});
    amax_ = scratch.zeros(DType::u32, {1});
    columns_ = scratch.zeros(DType::u32, {values.cols()});
  }
  void make(Stream& stream) const {
    fp8::Quantize q{.x = values_,
                    .granularity = recipe_.granularity,
                    .rounding = recipe_.rounding,
                    .out = bytes_,
                    .transposed = turned_};
    if (recipe_.granularity == fp8::Granularity::tensor) {
      fp8::amax(stream, values_, amax_);
      q.amax = amax_;
    }
    if (recipe_.granularity == fp8::Granularity::row && !turned_.empty()) {
      fp8::column_amax(stream, values_, columns_);
      q.column_amax = columns_;
    }
    fp8::quantize(stream, q);
  }
  fp8::ScaledOperand straight() const { return {.matrix = bytes_, .granularity = recipe_.granularity}; }
  fp8::ScaledOperand turned() const { return {.matrix = turned_, .granularity = recipe_.granularity}; }

 private:
  fp8::OperandRecipe recipe_;
  Tensor values_, amax_, columns_;
  fp8::Float8Codes bytes_, turned_;
};

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
  const bool turns = recipe.weight_gradient.is_fp8;
  const Operand qx(scratch, recipe.forward.a, x, turns), qdy(scratch, recipe.input_gradient.a, dy, turns);
  // Where both products take the weight alike, it is read once for both.
  const bool is_read_once = recipe.forward.b == recipe.input_gradient.b;
  const Operand qw(scratch, recipe.forward.b, w, is_read_once);
  std::optional<Operand> qwt;
  if (!is_read_once)
    qwt.emplace(scratch, recipe.input_gradient.b, scratch.tensor(DType::bf16, {s.columns, s.rows}), false);
  fp8::ScaledMatmul scaled[3] = {
      {.kind = MatmulKind::forward, .a = qx.straight(), .b = qw.straight(), .out = y},
      {.kind = MatmulKind::input_gradient,
       .a = qdy.straight(),
       .b = qwt ? qwt->straight() : qw.turned(),
       .out = dx},
      {.kind = MatmulKind::weight_gradient,
       .a = qdy.turned(),
       .b = qx.turned(),
       .out = dw,
       .accumulate = true}};
  const int products = turns ? 3 : 2;
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
    qw.make(stream);
    if (qwt) qwt->make(stream);
  });
  const double bf16 = best_milliseconds(stream, [&] {
    for (const Matmul& m : plain) matmul(stream, m);
  });
  const double fp8 = best_milliseconds(stream, [&] {
    qx.make(stream);
    qdy.make(stream);
    for (int i = 0; i < products; ++i) fp8::scaled_matmul(stream, scaled[i]);
    if (!turns) matmul(stream, plain[2]);
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
