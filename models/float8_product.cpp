#include "models/float8_product.h"

namespace ottava {

using fp8::ColumnwiseCodes;

namespace {

/// Labels the time of making FP8 operands, separate from the products' in a profile and, like these, of all
/// blocks together.
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

bool gathers_scale_rows(const Float8Allocation& all) {
  return fp8::traits(all.granularity).row_gather == fp8::RowGather::scale_rows;
}

}  // namespace

const fp8::OperandRecipe& Float8Product::recipe_of(Source source) const {
  return source == Source::x ? o_.recipe.forward.a : o_.recipe.input_gradient.a;
}

fp8::ColumnwiseCodes Float8Product::columnwise_codes(const StepContext& c, Source source, Use use) const {
  return use.weight_gradient ? fp8::columnwise_codes(recipe_of(source).granularity, c.stream.target().type)
                             : ColumnwiseCodes::none;
}

Tensor Float8Product::amax_slot(const StepContext& c, Source source) const {
  return is_measured(source) ? slots(c, source).amax : Tensor{};
}

fp8::OperandSlots Float8Product::slots(const StepContext& c, Source source) const {
  fp8::OperandSlots out = c.float8->slots(slot_of(source));
  if (c.is_recomputing) out.counters = {};
  return out;
}

Float8Allocation::Codes Float8Product::place(const StepContext& c, Source source, Shape shape,
                                             std::string_view suffix, MemoryCategory category) const {
  const fp8::OperandRecipe& recipe = recipe_of(source);
  const std::string name = fmt::format("{}.{}{}", o_.name, source == Source::x ? "x" : "dy", suffix);
  Float8Allocation::Codes out{.codes = c.arena.allocate(name, recipe.format, shape, category)};
  out.scale_inverse =
      c.arena.allocate(name + " scales", fp8::scale_dtype(recipe.granularity),
                       fp8::scale_shape(recipe.granularity, shape.rows(), shape.cols()), category);
  return out;
}

Float8Product::Produced Float8Product::produced(const StepContext& c, Shape shape, Source source,
                                                MemoryCategory category) const {
  const fp8::OperandRecipe& recipe = recipe_of(source);
  const fp8::OperandSlots to = slots(c, source);
  Produced p{.codes = {.rowwise = place(c, source, shape, "", category), .granularity = recipe.granularity}};
  const bool has_history = plan_of(source).has_history;
  if (has_history && !c.float8->scale_is_known(slot_of(source))) return p;
  p.output = {.granularity = recipe.granularity,
              .rounding = recipe.rounding,
              .out = p.codes.rowwise,
              .counters = to.counters,
              .non_finite = to.non_finite};
  if (has_history) p.output.amax = to.scale_amax;
  if (has_history || !to.counters.empty()) p.output.largest = to.amax;
  return p;
}

Float8Allocation::Codes Float8Product::place_transposed(const StepContext& c,
                                                        const Float8Allocation::Codes& rowwise,
                                                        MemoryCategory category) const {
  const Tensor& codes = rowwise.codes;
  return {
      .codes = c.arena.allocate(o_.name + ".transposed", codes.dtype, {codes.cols(), codes.rows()}, category),
      .scale_inverse = rowwise.scale_inverse};
}

Float8Allocation Float8Product::complete(const StepContext& c, const Produced& produced, const Tensor& values,
                                         Source source, Use use) const {
  const ColumnwiseCodes columnwise = columnwise_codes(c, source, use);
  Float8Allocation out = produced.codes;
  if (columnwise == ColumnwiseCodes::quantized) {  // the producer has measured and counted
    out.columnwise = quantize(c.recomputing(), values, source, {.weight_gradient = true}).columnwise;
    return out;
  }
  if (columnwise == ColumnwiseCodes::transposed)
    out.columnwise = place_transposed(c, out.rowwise, use.category());
  QuantizeTime time(c, o_.name);
  if (produced.output.empty()) {
    fp8::quantize_operand(c.stream, {.x = values,
                                     .out = out,
                                     .rounding = recipe_of(source).rounding,
                                     .slots = slots(c, source),
                                     .measured = fp8::Measured::amax});
  } else if (columnwise == ColumnwiseCodes::transposed) {
    fp8::transpose_codes(c.stream, out.rowwise.codes, out.columnwise.codes);
  }
  return out;
}

Float8Allocation Float8Product::quantize(const StepContext& c, const Tensor& m, Source source,
                                         Use use) const {
  return quantize(c, m, {}, source, use);
}

Float8Allocation Float8Product::quantize(const StepContext& c, const Tensor& m, ColumnRange block,
                                         Source source, Use use) const {
  const Shape shape = rows_of(o_.name, m, block).shape();
  const fp8::OperandRecipe& recipe = recipe_of(source);
  const bool shares_scale = plan_of(source).travel == Travel::codes &&
                            fp8::traits(recipe.granularity).row_gather == fp8::RowGather::common_scale;
  fp8::OperandSlots to = slots(c, source);
  bool is_known = c.is_recomputing || is_measured(source);
  if (shares_scale && !c.is_recomputing) {
    if (!is_known) fp8::amax(c.stream, m, to.amax, block);
    c.tensor_parallel.all_reduce(c.stream, to.amax, ReduceOp::max, "amax");
    is_known = true;
  }
  QuantizeTime time(c, o_.name);
  const bool columnwise = columnwise_codes(c, source, use) != ColumnwiseCodes::none;
  Float8Allocation out{.granularity = recipe.granularity};
  if (use.product || !columnwise) out.rowwise = place(c, source, shape, "", use.category());
  if (columnwise)
    out.columnwise = place(c, source, {shape.cols(), shape.rows()}, ".transposed", use.category());
  Allocation columns;
  if (fp8::takes_column_amax(out)) columns = c.scratch(o_.name + ".column amax", DType::u32, {shape.cols()});
  fp8::quantize_operand(c.stream, {.x = m,
                                   .x_columns = block,
                                   .out = out,
                                   .rounding = recipe.rounding,
                                   .slots = to,
                                   .column_amax = columns ? columns.tensor() : Tensor{},
                                   .measured = is_known ? fp8::Measured::amax : fp8::Measured::nothing});
  return out;
}

Float8Product::Gathering Float8Product::start_gather(const StepContext& c, Float8Allocation mine) const {
  const TensorParallelGroup& tp = c.tensor_parallel;
  Gathering out;
  out.codes = tp.start_gather_rows(c.stream, c.arena, mine.rowwise.codes, o_.name);
  if (gathers_scale_rows(mine))
    out.scales = tp.start_gather_rows(c.stream, c.arena, mine.rowwise.scale_inverse, o_.name);
  out.mine = std::move(mine);
  return out;
}

Float8Allocation Float8Product::finish(const StepContext& c, Gathering g, Source source, Use use) const {
  Float8Allocation all = g.mine;
  all.rowwise.codes = g.codes.wait(c.stream);
  switch (fp8::traits(g.mine.granularity).row_gather) {
    case fp8::RowGather::common_scale:
      break;
    case fp8::RowGather::scale_rows:
      all.rowwise.scale_inverse = g.scales.wait(c.stream);
      break;
    case fp8::RowGather::scale_columns:
      all.rowwise.scale_inverse =
          c.tensor_parallel.gather_columns(c.stream, c.arena, g.mine.rowwise.scale_inverse, o_.name);
      break;
    case fp8::RowGather::none:
      fail<ShapeError>("fp8", "{}: scales per {} do not travel with gathered activations", o_.name,
                       fp8::name_of(g.mine.granularity));
  }
  g = {};
  return for_products(c, std::move(all), source, use);
}

Float8Allocation Float8Product::for_products(const StepContext& c, Float8Allocation all, Source source,
                                             Use use) const {
  if (columnwise_codes(c, source, use) != ColumnwiseCodes::none) {
    QuantizeTime time(c, o_.name);
    all.columnwise = place_transposed(c, all.rowwise, MemoryCategory::scratch);
    fp8::transpose_codes(c.stream, all.rowwise.codes, all.columnwise.codes);
    if (!use.product) all.rowwise = {};
  }
  return all;
}

bool Float8Product::has_row_blocks(fp8::Granularity granularity) {
  const fp8::RowGather gather = fp8::traits(granularity).row_gather;
  return gather == fp8::RowGather::common_scale || gather == fp8::RowGather::scale_rows;
}

fp8::Float8Tensor Float8Product::row_block(const Float8Allocation& all, RowRange rows) {
  fp8::Float8Tensor out{.rowwise = all.rowwise, .granularity = all.granularity};
  out.rowwise.codes = out.rowwise.codes.slice(rows.begin, rows.end);
  if (gathers_scale_rows(all))
    out.rowwise.scale_inverse = out.rowwise.scale_inverse.slice(rows.begin, rows.end);
  return out;
}

GatheredRows Float8Product::gather_row_blocks(const StepContext& c, const Float8Allocation& mine) const {
  std::vector<Allocation> locals{mine.rowwise.codes};
  if (gathers_scale_rows(mine)) locals.push_back(mine.rowwise.scale_inverse);
  return c.tensor_parallel.gather_row_blocks(c.stream, c.arena, std::move(locals), o_.name);
}

Float8Allocation Float8Product::finish(const StepContext& c, const GatheredRows& rows,
                                       const Float8Allocation& mine, Source source, Use use) const {
  Float8Allocation all = mine;
  all.rowwise.codes = rows.result(0);
  if (gathers_scale_rows(mine)) all.rowwise.scale_inverse = rows.result(1);
  return for_products(c, std::move(all), source, use);
}

Float8Allocation Float8Product::gather(const StepContext& c, Float8Allocation mine, Source source,
                                       Use use) const {
  return finish(c, start_gather(c, std::move(mine)), source, use);
}

void Float8Product::run(const StepContext& c, fp8::ScaledMatmul args) const {
  args.emulate = o_.emulates;
  args.fast = o_.fast;
  const int64_t bytes = fp8::scaled_matmul_workspace_bytes(c.stream, args);
  Allocation workspace;
  if (bytes > 0) {
    workspace = c.scratch(o_.name + ".workspace", DType::u8, {bytes});
    args.workspace = workspace;
  }
  fp8::scaled_matmul(c.stream, args);
  c.float8->count_product(o_.product, o_.recipe.name, args.kind);
}

void Float8Product::forward(const StepContext& c, const fp8::Float8Tensor& x, const Tensor& y,
                            ColumnRange columns) const {
  run(c, {.kind = MatmulKind::forward,
          .a = x,
          .b = c.parameters.float8_weight(o_.entry, WeightUse::forward),
          .out = y,
          .out_columns = columns});
}

void Float8Product::input_gradient(const StepContext& c, const fp8::Float8Tensor& dy, const Tensor& dx,
                                   bool accumulate) const {
  run(c, {.kind = MatmulKind::input_gradient,
          .a = dy,
          .b = c.parameters.float8_weight(o_.entry, WeightUse::backward),
          .out = dx,
          .accumulate = accumulate});
}

void Float8Product::weight_gradient(const StepContext& c, const Float8Allocation& dy,
                                    const Float8Allocation& x, const Tensor& dw, bool accumulate) const {
  run(c, {.kind = MatmulKind::weight_gradient, .a = dy, .b = x, .out = dw, .accumulate = accumulate});
}

}  // namespace ottava
