// What products read of FP8 weights: codes gathered while their unit is whole, transposed or tiled for their
// use, or made from the gathered weight.
#include "core/ops/elementwise.h"
#include "fp8/quantize_operand.h"
#include "parallel/sharding/float8_weights.h"
#include "parallel/sharding/fsdp.h"

namespace ottava {

bool Float8Weights::reads_columnwise(const fp8::OperandRecipe& recipe, WeightUse use) const {
  return includes(use, WeightUse::backward) &&
         fp8::columnwise_codes(recipe.granularity, target_.type) != fp8::ColumnwiseCodes::none;
}

Tensor Float8Weights::allocate(Form& form, std::string_view name, DType dtype, Shape shape) {
  return form.memory.emplace_back(arena_.allocate(name, dtype, shape, MemoryCategory::unsharded)).tensor();
}

fp8::Float8Codes Float8Weights::allocate_codes(Form& form, std::string_view name, Shape shape) {
  const fp8::OperandRecipe& recipe = form.recipe;
  const Tensor codes = allocate(form, name, recipe.format, shape);
  return {codes, allocate(form, fmt::format("{} scales", name), fp8::scale_dtype(recipe.granularity),
                          fp8::scale_shape(recipe.granularity, shape.rows(), shape.cols()))};
}

void Float8Weights::gather(Stream& stream, size_t i, WeightUse use) {
  Entry& e = entries_[i];
  if (e.home != Home::gathered) return;
  Form& form = e.form(use);
  const int64_t shards = ranks_.dp_shard->size();
  const std::string& name = options_.specs[i].name;
  // Scales that do not travel are common to all shards.
  form.gathered = {
      allocate(form, name + ".fp8 whole", form.recipe.format, {e.segment_rows * shards, e.columns}),
      form.shard.scale_inverse};
  ranks_.dp_shard->all_gather(stream, {.send = form.shard.codes, .recv = form.gathered.codes, .label = name});
  if (!e.scales_travel(use)) return;
  const Tensor& scales = form.shard.scale_inverse;
  form.gathered.scale_inverse =
      allocate(form, name + ".scales whole", scales.dtype, scales.shape.with_first(scales.shape[0] * shards));
  ranks_.dp_shard->all_gather(stream, {.send = scales, .recv = form.gathered.scale_inverse, .label = name});
}

void Float8Weights::release(size_t i) {
  Entry& e = entries_[i];
  if (e.home == Home::resident || e.home == Home::kept) return;
  for (Form& form : e.forms) {
    form.gathered = {};
    form.whole = {.granularity = form.recipe.granularity};
    form.memory.clear();
  }
}

// x with the zero rows of a product at its end.
Allocation Float8Weights::padded_rows(Stream& stream, size_t i, Tensor& x) {
  const Float8WeightSpec& spec = options_.specs[i];
  if (spec.padded_rows <= spec.rows.size()) return {};
  Allocation padded = arena_.allocate(spec.name + ".padded", DType::bf16, {entries_[i].rows, x.cols()},
                                      MemoryCategory::scratch);
  fill_zero(stream, padded);
  cast(stream, x, padded.tensor().slice(0, x.rows()));
  x = padded;
  return padded;
}

void Float8Weights::make_local(Stream& stream, size_t i, WeightUse use, const Tensor& whole) {
  const Float8WeightSpec& spec = options_.specs[i];
  Entry& e = entries_[i];
  Form& form = e.form(use);
  Tensor x = whole.slice(spec.rows.begin, spec.rows.end);
  const Allocation padded = padded_rows(stream, i, x);
  Allocation columns;
  fp8::Float8Tensor out{.granularity = form.recipe.granularity};
  if (reads_columnwise(form.recipe, use)) {
    out.columnwise = form.whole.columnwise =
        allocate_codes(form, spec.name + ".fp8 transposed", {x.cols(), x.rows()});
  } else {
    out.rowwise = form.whole.rowwise = allocate_codes(form, spec.name + ".fp8", x.shape);
  }
  if (fp8::takes_column_amax(out))
    columns = arena_.allocate(spec.name + ".column amax", DType::u32, {e.columns}, MemoryCategory::scratch);
  make(stream, i, form, x, out, columns ? columns.tensor() : Tensor{});
}

// For both uses at once: backward then needs no gather.
void Float8Weights::make_kept(Stream& stream, size_t i, const Tensor& whole) {
  const Float8WeightSpec& spec = options_.specs[i];
  Entry& e = entries_[i];
  Tensor x = whole.slice(spec.rows.begin, spec.rows.end);
  const Allocation padded = padded_rows(stream, i, x);
  for (WeightUse use : e.uses()) {
    if (!includes(uses_, use)) continue;
    const Form& form = e.form(use);
    fp8::Float8Tensor out = form.whole;
    if (uses_ == WeightUse::forward && !out.rowwise.empty()) out.columnwise = {};
    make(stream, i, form, x, out, form.column_amax);
  }
  e.holds_codes = true;
}

/// What products read, from what was gathered.
void Float8Weights::assemble(Stream& stream, size_t i, WeightUse use) {
  Entry& e = entries_[i];
  Form& form = e.form(use);
  const bool columnwise = reads_columnwise(form.recipe, use);
  const std::string& name = options_.specs[i].name;
  const Shape matrix = columnwise ? Shape{e.columns, e.rows} : Shape{e.rows, e.columns};
  fp8::Float8Codes out{form.gathered.codes.slice(0, e.rows), form.gathered.scale_inverse};
  if (e.scales_travel(use)) {
    out.scale_inverse = out.scale_inverse.slice(0, travelling_scales(form.recipe, use, e.rows, e.columns)[0]);
  }
  if (columnwise) {
    const Tensor rowwise = out.codes;
    out.codes = allocate(form, name + ".fp8 transposed", form.recipe.format, matrix);
    fp8::transpose_codes(stream, rowwise, out.codes);
  }
  if (const ScaleForm read = scale_form(form.recipe, columnwise); read != ScaleForm::same) {
    const Tensor travelled = out.scale_inverse;
    out.scale_inverse = allocate(form, name + ".fp8 scales", travelled.dtype,
                                 fp8::scale_shape(form.recipe.granularity, matrix.rows(), matrix.cols()));
    if (read == ScaleForm::tiled) {
      fp8::tile_scales(
          stream,
          {.tiles = out.scale_inverse, .plain = travelled, .matrix = matrix, .order = travelling_order(use)});
    } else {
      fp8::transpose_block_scales(stream, travelled, {e.rows, e.columns}, out.scale_inverse);
    }
  }
  (columnwise ? form.whole.columnwise : form.whole.rowwise) = out;
}

fp8::Float8Tensor Float8Weights::operand(Stream& stream, size_t i, WeightUse use, const Tensor& whole) {
  Entry& e = entries_[i];
  Form& form = e.form(use);
  if (e.home == Home::kept) {
    if (!e.holds_codes) make_kept(stream, i, whole);
    return form.whole;
  }
  const bool columnwise = reads_columnwise(form.recipe, use);
  if ((columnwise ? form.whole.columnwise : form.whole.rowwise).empty())
    e.home == Home::local ? make_local(stream, i, use, whole) : assemble(stream, i, use);
  return form.whole;
}

}  // namespace ottava
