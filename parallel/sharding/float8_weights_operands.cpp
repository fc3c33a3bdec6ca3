// What products read of FP8 weights: bytes gathered while their unit is whole, turned or tiled for their
// use, or made from the gathered weight.
#include "core/ops/elementwise.h"
#include "fp8/scale_tiles.h"
#include "parallel/sharding/float8_weights.h"
#include "parallel/sharding/fsdp.h"

namespace ottava {

using fp8::Granularity;

bool Float8Weights::reads_outer(const fp8::OperandRecipe& recipe) const {
  return target_.type != DeviceType::cuda && scales_turn(recipe.granularity);
}

fp8::Float8Codes Float8Weights::allocate(std::string_view name, const fp8::OperandRecipe& recipe, Shape shape,
                                         Allocation& bytes, Allocation& scales) {
  bytes = arena_.allocate(name, recipe.format, shape, MemoryCategory::unsharded);
  scales = arena_.allocate(fmt::format("{} scales", name), fp8::scale_dtype(recipe.granularity),
                           fp8::scale_shape(recipe.granularity, shape.rows(), shape.cols()),
                           MemoryCategory::unsharded);
  return {bytes, scales};
}

void Float8Weights::gather(Stream& stream, size_t i, bool backward_form) {
  Entry& e = entries_[i];
  if (e.home != Home::gathered) return;
  Form& form = e.forms[backward_form];
  const int64_t shards = ranks_.dp_shard->size();
  const std::string& name = options_.specs[i].name;
  form.whole_bytes = arena_.allocate(name + ".fp8 whole", form.recipe.format,
                                     {e.segment_rows * shards, e.columns}, MemoryCategory::unsharded);
  ranks_.dp_shard->all_gather(stream, {.send = form.straight.codes, .recv = form.whole_bytes, .label = name});
  const Float8Travel travel = float8_travel(options_.specs[i]);
  if (!(backward_form ? travel.backward_scales : travel.forward_scales)) return;
  const Tensor& scales = form.straight.scale_inverse;
  Shape shape{scales.shape[0] * shards};
  if (scales.shape.rank() == 2) shape = {scales.shape[0] * shards, scales.shape[1]};
  form.whole_scales = arena_.allocate(name + ".scales whole", scales.dtype, shape, MemoryCategory::unsharded);
  ranks_.dp_shard->all_gather(stream, {.send = scales, .recv = form.whole_scales, .label = name});
}

void Float8Weights::release(size_t i) {
  for (Form& form : entries_[i].forms) {
    form.whole_bytes.release();
    form.whole_scales.release();
    form.turned_bytes.release();
    form.turned_scales.release();
    form.tiled_scales.release();
  }
}

void Float8Weights::make_local(Stream& stream, size_t i, Form& form, const Tensor& whole, bool turns) {
  const Float8WeightSpec& spec = options_.specs[i];
  const Entry& e = entries_[i];
  Tensor x = whole.slice(spec.rows.begin, spec.rows.end);
  Allocation padded, columns;
  if (spec.padded_rows > spec.rows.size()) {
    padded =
        arena_.allocate(spec.name + ".padded", DType::bf16, {e.rows, e.columns}, MemoryCategory::scratch);
    fill_zero(stream, padded);
    cast(stream, x, padded.tensor().slice(0, x.rows()));
    x = padded;
  }
  if (!turns)
    return make(stream, i, form, x,
                allocate(spec.name + ".fp8", form.recipe, x.shape, form.whole_bytes, form.whole_scales), {},
                {});
  if (form.recipe.granularity == Granularity::row) {
    columns = arena_.allocate(spec.name + ".column amax", DType::u32, {e.columns}, MemoryCategory::scratch);
    fill_zero(stream, columns);
    fp8::column_amax(stream, x, columns);
  }
  make(stream, i, form, x, {},
       allocate(spec.name + ".fp8 turned", form.recipe, {x.cols(), x.rows()}, form.turned_bytes,
                form.turned_scales),
       columns ? columns.tensor() : Tensor{});
}

void Float8Weights::turn_whole(Stream& stream, size_t i, Form& form) {
  const Entry& e = entries_[i];
  form.turned_bytes = arena_.allocate(options_.specs[i].name + ".fp8 turned", form.recipe.format,
                                      {e.columns, e.rows}, MemoryCategory::unsharded);
  fp8::transpose_codes(stream, form.whole_bytes.tensor().slice(0, e.rows), form.turned_bytes);
  if (form.recipe.granularity != Granularity::block_128x128) return;
  form.turned_scales = arena_.allocate(options_.specs[i].name + ".fp8 turned scales", DType::f32,
                                       fp8::scale_shape(form.recipe.granularity, e.columns, e.rows),
                                       MemoryCategory::unsharded);
  fp8::transpose_block_scales(stream, straight_of(e, form).scale_inverse, {e.rows, e.columns},
                              form.turned_scales);
}

void Float8Weights::tile_whole(Stream& stream, size_t i, Form& form, bool backward_form) {
  const Entry& e = entries_[i];
  const Shape matrix = backward_form ? Shape{e.columns, e.rows} : Shape{e.rows, e.columns};
  form.tiled_scales = arena_.allocate(options_.specs[i].name + ".scale tiles", DType::e8m0,
                                      fp8::scale_shape(form.recipe.granularity, matrix.rows(), matrix.cols()),
                                      MemoryCategory::unsharded);
  const Shape plain = travelling_scales(form.recipe, backward_form, e.rows, e.columns);
  fp8::tile_scales(stream, {.tiles = form.tiled_scales,
                            .plain = form.whole_scales.tensor().slice(0, plain[0]),
                            .matrix = matrix,
                            .order = travelling_order(backward_form)});
}

fp8::Float8Codes Float8Weights::straight_of(const Entry& e, const Form& form) const {
  if (e.home == Home::resident) return form.straight;
  if (e.home == Home::local) return {form.whole_bytes, form.whole_scales};
  if (form.tiled_scales) return {form.whole_bytes.tensor().slice(0, e.rows), form.tiled_scales};
  const Tensor& scales = form.whole_scales ? form.whole_scales.tensor() : form.straight.scale_inverse;
  const Shape shape = fp8::scale_shape(form.recipe.granularity, e.rows, e.columns);
  return {form.whole_bytes.tensor().slice(0, e.rows),
          scales.shape == shape ? scales : scales.slice(0, shape[0])};
}

fp8::Float8Codes Float8Weights::turned_of(const Entry& e, const Form& form) const {
  if (e.home == Home::resident) return form.turned;
  if (e.home == Home::local) return {form.turned_bytes, form.turned_scales};
  if (form.turned_scales) return {form.turned_bytes, form.turned_scales};
  if (form.tiled_scales) return {form.turned_bytes, form.tiled_scales};
  return {form.turned_bytes, form.straight.scale_inverse};  // per tensor, or per column: common to all shards
}

fp8::ScaledOperand Float8Weights::operand(Stream& stream, size_t i, WeightUse use, const Tensor& whole) {
  Entry& e = entries_[i];
  using Contraction = fp8::ScaledOperand::Contraction;
  const bool backward = use == WeightUse::backward;
  Form& form = e.forms[backward && !e.shares ? 1 : 0];
  const bool turns = backward && !reads_outer(form.recipe);
  if (e.home == Home::local && !(turns ? form.turned_bytes : form.whole_bytes))
    make_local(stream, i, form, whole, turns);
  if (e.home == Home::gathered && turns && !form.turned_bytes) turn_whole(stream, i, form);
  if (e.home == Home::gathered && is_mx(form.recipe) && !form.tiled_scales)
    tile_whole(stream, i, form, backward);
  return {.matrix = turns ? turned_of(e, form) : straight_of(e, form),
          .granularity = form.recipe.granularity,
          .contraction = backward && !turns ? Contraction::outer : Contraction::inner};
}

}  // namespace ottava
