#include "models/float8_product.h"

#include <utility>

#include "core/ops/elementwise.h"

namespace ottava {

using fp8::Granularity;

namespace {

/// Time that making FP8 operands takes, apart from the products' in a profile: as of those, of all blocks
/// together.
class QuantizeTime {
 public:
  QuantizeTime(const StepContext& c, const std::string& name) : profile_(c.profile) {
    if (!profile_) return;
    const bool is_in_block = name.starts_with("layers.");
    profile_->enter((is_in_block ? name.substr(name.find('.', 7) + 1) : name) + ".quantize");
  }
  ~QuantizeTime() {
    if (profile_) profile_->leave();
  }
  QuantizeTime(const QuantizeTime&) = delete;

 private:
  StepProfile* profile_;
};

}  // namespace

fp8::ScaledOperand Float8Matrix::along_columns() const {
  return {.matrix = {bytes, scales}, .granularity = granularity};
}

fp8::ScaledOperand Float8Matrix::along_rows() const {
  if (turned_bytes) return {.matrix = {turned_bytes, turned_scales}, .granularity = granularity};
  return {.matrix = {bytes, scales},
          .granularity = granularity,
          .contraction = fp8::ScaledOperand::Contraction::outer};
}

const fp8::OperandRecipe& Float8Product::operand_recipe(Source source) const {
  return source == Source::x ? recipe_.forward.a : recipe_.input_gradient.a;
}

bool Float8Product::turns(const StepContext& c) const {
  return c.stream.target().type == DeviceType::cuda || !has_tensor_scales();
}

Tensor Float8Product::amax_slot(const StepContext& c, Source source) const {
  return has_tensor_scales() ? c.float8->amax(slot(source)) : Tensor{};
}

fp8::Float8Codes Float8Product::place(const StepContext& c, Source source, Shape shape,
                                      std::string_view suffix, Allocation& bytes, Allocation& scales,
                                      MemoryCategory category) const {
  const fp8::OperandRecipe& recipe = operand_recipe(source);
  bytes = c.arena.allocate(fmt::format("{}.{}{}", name_, source == Source::x ? "x" : "dy", suffix),
                           recipe.format, shape, category);
  scales = c.arena.allocate(fmt::format("{}.scales{}", name_, suffix), fp8::scale_dtype(recipe.granularity),
                            fp8::scale_shape(recipe.granularity, shape.rows(), shape.cols()), category);
  return {bytes, scales};
}

bool Float8Product::can_be_produced(Source source) const {
  const Granularity g = operand_recipe(source).granularity;
  return g == Granularity::row || g == Granularity::block_1x128;
}

Float8Product::Produced Float8Product::produced(const StepContext& c, Shape shape, Source source) const {
  const fp8::OperandRecipe& recipe = operand_recipe(source);
  Produced p{.matrix = {.granularity = recipe.granularity},
             .output = {.granularity = recipe.granularity,
                        .rounding = recipe.rounding,
                        .non_finite = c.float8->non_finite(slot(source))}};
  p.output.out = place(c, source, shape, "", p.matrix.bytes, p.matrix.scales, MemoryCategory::scratch);
  if (!c.is_recomputing) p.output.counters = c.float8->counters(slot(source));
  if (!p.output.counters.empty()) p.output.largest = c.float8->amax(slot(source));
  return p;
}

Float8Matrix Float8Product::quantize(const StepContext& c, const Tensor& m, Source source, Wanted wanted,
                                     bool is_measured, MemoryCategory category) const {
  QuantizeTime time(c, name_);
  const fp8::OperandRecipe& recipe = operand_recipe(source);
  const bool straight = wanted.along_columns || !turns(c), turned = wanted.along_rows && turns(c);
  if (has_tensor_scales() && !is_measured && !c.is_recomputing)
    fp8::amax(c.stream, m, c.float8->amax(slot(source)));
  Float8Matrix out{.granularity = recipe.granularity};
  fp8::Quantize args{.x = m, .granularity = recipe.granularity, .rounding = recipe.rounding};
  if (straight) args.out = place(c, source, m.shape, "", out.bytes, out.scales, category);
  if (turned) {
    args.transposed =
        place(c, source, {m.cols(), m.rows()}, ".turned", out.turned_bytes, out.turned_scales, category);
  }
  if (has_tensor_scales()) args.amax = c.float8->scale_amax(slot(source));
  Allocation columns;
  if (turned && recipe.granularity == Granularity::row) {
    columns = c.scratch(name_ + ".column amax", DType::u32, {m.cols()});
    fill_zero(c.stream, columns);
    fp8::column_amax(c.stream, m, columns);
    args.column_amax = columns;
  }
  if (!c.is_recomputing) args.counters = c.float8->counters(slot(source));
  args.non_finite = c.float8->non_finite(slot(source));
  // Groups measure themselves; who watches wants to know the largest.
  if (!has_tensor_scales() && !args.counters.empty()) args.largest = c.float8->amax(slot(source));
  fp8::quantize(c.stream, args);
  return out;
}

bool Float8Product::can_gather(Source source) const {
  const Granularity g = operand_recipe(source).granularity;
  return g == Granularity::tensor || g == Granularity::row || g == Granularity::block_1x128;
}

Float8Matrix Float8Product::gather(const StepContext& c, const Tensor& m, Source source, Wanted wanted,
                                   bool is_measured, Float8Matrix* local) const {
  if (!can_gather(source)) {
    fail<ShapeError>("fp8", "{}: scales per {} do not travel with gathered activations", name_,
                     fp8::name_of(operand_recipe(source).granularity));
  }
  if (has_tensor_scales() && !c.is_recomputing) {
    if (!is_measured) fp8::amax(c.stream, m, c.float8->amax(slot(source)));
    c.tensor_parallel.all_reduce_max(c.stream, c.float8->amax(slot(source)), "amax");
  }
  Float8Matrix mine = quantize(c, m, source, {.along_columns = true}, true,
                               local ? MemoryCategory::activations : MemoryCategory::scratch);
  Float8Matrix all = gather_bytes(c, mine, source);
  if (wanted.along_rows) turn(c, all);
  if (local) *local = std::move(mine);
  return all;
}

Float8Matrix Float8Product::gather_bytes(const StepContext& c, const Float8Matrix& mine,
                                         Source source) const {
  const TensorParallelGroup& tp = c.tensor_parallel;
  Float8Matrix all = mine;
  all.bytes = tp.gather_rows(c.stream, c.arena, mine.bytes, name_);
  const Granularity granularity = operand_recipe(source).granularity;
  if (granularity == Granularity::row) all.scales = tp.gather_rows(c.stream, c.arena, mine.scales, name_);
  if (granularity == Granularity::block_1x128)
    all.scales = tp.gather_columns(c.stream, c.arena, mine.scales, name_);
  return all;
}

void Float8Product::turn(const StepContext& c, Float8Matrix& m) const {
  if (!turns(c)) return;
  QuantizeTime time(c, name_);
  const Tensor& bytes = m.bytes;
  m.turned_bytes = c.scratch(name_ + ".turned", bytes.dtype, {bytes.cols(), bytes.rows()});
  fp8::transpose_codes(c.stream, bytes, m.turned_bytes);
  m.turned_scales = m.scales;
}

Float8Matrix Float8Product::gather_kept(const StepContext& c, const Float8Matrix& local) const {
  Float8Matrix all = local;
  all.bytes = c.tensor_parallel.gather_rows(c.stream, c.arena, local.bytes, name_);
  turn(c, all);
  if (all.turned_bytes) all.bytes.release();
  return all;
}

void Float8Product::run(const StepContext& c, fp8::ScaledMatmul args) const {
  args.emulate = emulates_;
  const int64_t bytes = fp8::scaled_matmul_workspace_bytes(c.stream, args);
  Allocation workspace;
  if (bytes > 0) {
    workspace = c.scratch(name_ + ".workspace", DType::u8, {bytes});
    args.workspace = workspace;
  }
  fp8::scaled_matmul(c.stream, args);
  c.float8->count_product(product_, recipe_.name, args.kind);
}

void Float8Product::forward(const StepContext& c, const Float8Matrix& x, const Tensor& y) const {
  run(c, {.kind = MatmulKind::forward,
          .a = x.along_columns(),
          .b = c.parameters.float8_weight(entry_, WeightUse::forward),
          .out = y});
}

void Float8Product::input_gradient(const StepContext& c, const Float8Matrix& dy, const Tensor& dx,
                                   bool accumulate) const {
  run(c, {.kind = MatmulKind::input_gradient,
          .a = dy.along_columns(),
          .b = c.parameters.float8_weight(entry_, WeightUse::backward),
          .out = dx,
          .accumulate = accumulate});
}

void Float8Product::weight_gradient(const StepContext& c, const Float8Matrix& dy, const Float8Matrix& x,
                                    const Tensor& dw, bool accumulate) const {
  run(c, {.kind = MatmulKind::weight_gradient,
          .a = dy.along_rows(),
          .b = x.along_rows(),
          .out = dw,
          .accumulate = accumulate});
}

}  // namespace ottava
