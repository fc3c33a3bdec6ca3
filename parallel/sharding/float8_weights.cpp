#include "parallel/sharding/float8_weights.h"

#include <algorithm>
#include <utility>

#include "core/ops/elementwise.h"
#include "fp8/scale_tiles.h"
#include "fp8/step_amax.h"
#include "parallel/sharding/fsdp.h"

// How the bytes are made: where they live, what is measured for their scales, what ranks exchange.
namespace ottava {
namespace {

using fp8::Granularity;

fp8::Float8Codes persistent(Arena& arena, const std::string& name, const fp8::OperandRecipe& recipe,
                            Shape shape, Shape scales) {
  return {arena.persistent(name + ".fp8", recipe.format, shape, MemoryCategory::compute),
          arena.persistent(name + ".fp8 scales", fp8::scale_dtype(recipe.granularity), scales,
                           MemoryCategory::compute)};
}
fp8::Float8Codes persistent(Arena& arena, const std::string& name, const fp8::OperandRecipe& recipe,
                            Shape shape) {
  return persistent(arena, name, recipe, shape,
                    fp8::scale_shape(recipe.granularity, shape.rows(), shape.cols()));
}
Shape turned(const Shape& shape) { return {shape.cols(), shape.rows()}; }

}  // namespace

Float8Weights::Float8Weights(Arena& arena, RankGroups& ranks, const std::vector<ParameterShard>& shards,
                             Options options, Device target)
    : arena_(arena),
      ranks_(ranks),
      shards_(shards),
      options_(std::move(options)),
      target_(target),
      entries_(options_.specs.size()) {
  const auto count = static_cast<int64_t>(entries_.size());
  auto slots = [&](std::string_view name, DType dtype, Shape shape) {
    return arena.persistent(name, dtype, shape, MemoryCategory::data);
  };
  amax_ = slots("weight amaxes", DType::u32, {count});
  updated_amax_ = slots("updated weight amaxes", DType::u32, {count});
  non_finite_ = slots("weight flags", DType::u32, {count + 1});
  if (options_.counts) counters_ = slots("weight counters", DType::i64, {count, 3});
  const bool delays =
      std::any_of(options_.specs.begin(), options_.specs.end(), [](const auto& s) { return s.is_delayed; });
  if (delays) {
    scale_amax_ = slots("weight scale amaxes", DType::u32, {count});
    history_ = {.rows = slots("weight amax history", DType::u32, {options_.amax_history_length, count}),
                .margin = options_.margin};
  }
  for (size_t i = 0; i < entries_.size(); ++i) place(arena, i);

  int64_t columns = 0, scratch = 0, tiles = 0;
  auto is_exchanged = [](const Entry& e) {
    return e.home == Home::gathered && !e.shares && e.forms[1].recipe.granularity == Granularity::row;
  };
  for (const Entry& e : entries_) {
    if (!is_exchanged(e)) continue;
    columns += e.columns;
    // Room for make_column_scales() too: a row in bf16 and its bytes.
    scratch = std::max(scratch, std::max<int64_t>(e.segment_rows, 3) * e.columns);
  }
  for (const Entry& e : entries_) {
    if (e.home != Home::gathered || !is_mx(e.forms[0].recipe)) continue;
    scratch = std::max(scratch, e.segment_rows * e.columns);
    for (const Shape& shape : {Shape{e.segment_rows, e.columns}, Shape{e.columns, e.segment_rows}})
      tiles = std::max(tiles, fp8::scale_shape(Granularity::block_1x32, shape.rows(), shape.cols()).numel());
  }
  if (tiles > 0)
    tile_scratch_ = arena.persistent("weight scale tiles", DType::e8m0, {tiles}, MemoryCategory::compute);
  if (scratch > 0)
    turn_scratch_ = arena.persistent("weight transpose", DType::u8, {scratch}, MemoryCategory::compute);
  if (columns == 0) return;
  column_amax_ = slots("weight column amaxes", DType::u32, {columns});
  columns = 0;
  for (Entry& e : entries_) {
    if (!is_exchanged(e)) continue;
    e.forms[1].column_amax = column_amax_.slice(columns, columns + e.columns);
    columns += e.columns;
  }
}

void Float8Weights::place(Arena& arena, size_t i) {
  Entry& e = entries_[i];
  const Float8WeightSpec& spec = options_.specs[i];
  const ParameterShard& shard = shards_[static_cast<size_t>(spec.parameter)];
  const bool sharded = ranks_.dp_shard->size() > 1;
  e.home = !sharded                                                                         ? Home::resident
           : gathers_bytes(spec, shard.slice[0], static_cast<int>(ranks_.dp_shard->size())) ? Home::gathered
                                                                                            : Home::local;
  e.shares = float8_travel(spec).shares_bytes;
  e.forms[0].recipe = spec.forward;
  e.forms[1].recipe = spec.backward;
  e.rows = std::max(spec.rows.size(), spec.padded_rows);
  e.columns = shard.slice[1];
  const int64_t begin = std::max(shard.rows.begin, spec.rows.begin),
                end = std::min(shard.rows.end, spec.rows.end);
  e.shard = {begin, std::max(begin, end)};
  const int64_t pieces = static_cast<int64_t>(ranks_.dp_shard->size()) * shard_alignment(spec);
  e.segment_rows = (e.rows + pieces - 1) / pieces * shard_alignment(spec);
  for (int k = 0; k < (e.shares ? 1 : 2); ++k) {
    if (e.home == Home::resident) place_resident(arena, i, k == 1);
    if (e.home == Home::gathered) place_gathered(arena, i, k == 1);
  }
  if (e.home == Home::resident && spec.padded_rows > spec.rows.size()) {
    e.padded =
        arena.persistent(spec.name + ".padded", DType::bf16, {e.rows, e.columns}, MemoryCategory::compute);
  }
}

void Float8Weights::place_resident(Arena& arena, size_t i, bool backward_form) {
  Entry& e = entries_[i];
  Form& form = e.forms[backward_form];
  const std::string name = options_.specs[i].name + (backward_form ? ".backward" : "");
  const Shape shape{e.rows, e.columns};
  const bool turns = (backward_form || e.shares) && !reads_outer(form.recipe);
  if (!backward_form || !turns) form.straight = persistent(arena, name, form.recipe, shape);
  if (turns) form.turned = persistent(arena, name + ".turned", form.recipe, turned(shape));
  if (turns && form.recipe.granularity == Granularity::row) {
    form.column_amax = arena.persistent(name + ".column amax", DType::u32, {e.columns}, MemoryCategory::data);
  }
}

void Float8Weights::place_gathered(Arena& arena, size_t i, bool backward_form) {
  Entry& e = entries_[i];
  Form& form = e.forms[backward_form];
  const std::string name = options_.specs[i].name + (backward_form ? ".backward" : "");
  form.straight = persistent(arena, name, form.recipe, {e.segment_rows, e.columns},
                             travelling_scales(form.recipe, backward_form, e.segment_rows, e.columns));
  if (form.recipe.granularity == Granularity::row && backward_form) {
    form.straight.scale_inverse =
        arena.persistent(name + ".column scales", DType::f32, {e.columns}, MemoryCategory::compute);
  }
}

Tensor Float8Weights::master_rows(size_t i) const {
  const ParameterShard& shard = shards_[static_cast<size_t>(options_.specs[i].parameter)];
  const RowRange& held = entries_[i].shard;
  return shard.master.slice(held.begin - shard.rows.begin, held.end - shard.rows.begin);
}

Tensor Float8Weights::scale_amax(size_t i) const {
  const auto slot = static_cast<int64_t>(i);
  return (options_.specs[i].is_delayed ? scale_amax_ : amax_).slice(slot, slot + 1);
}

bool Float8Weights::has_scale_of_whole(size_t i) const {
  const Entry& e = entries_[i];
  return e.has_tensor_scale() &&
         options_.specs[i].rows.size() == shards_[static_cast<size_t>(options_.specs[i].parameter)].slice[0];
}

void Float8Weights::begin_update(Stream& stream) { fill_zero(stream, updated_amax_); }

Tensor Float8Weights::updated_amax(int parameter) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto slot = static_cast<int64_t>(i);
    if (options_.specs[i].parameter == parameter && has_scale_of_whole(i))
      return updated_amax_.slice(slot, slot + 1);
  }
  return {};
}

void Float8Weights::measure(Stream& stream) {
  if (is_measured_) {
    cast(stream, updated_amax_, amax_);
  } else {
    fill_zero(stream, amax_);
  }
  if (!column_amax_.empty()) fill_zero(stream, column_amax_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    if (e.shard.size() == 0) continue;
    const auto slot = static_cast<int64_t>(i);
    const bool is_known = is_measured_ && has_scale_of_whole(i);
    if (e.has_tensor_scale() && !is_known) fp8::amax(stream, master_rows(i), amax_.slice(slot, slot + 1));
    for (Form& form : e.forms) {
      if (form.column_amax.empty()) continue;
      if (e.home == Home::resident) fill_zero(stream, form.column_amax);
      fp8::column_amax(stream, master_rows(i), form.column_amax);
    }
  }
}

void Float8Weights::exchange(Stream& stream) {
  const bool per_tensor =
      std::any_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.has_tensor_scale(); });
  if (per_tensor && ranks_.replica->size() > 1) {
    ranks_.replica
        ->all_reduce(stream, {.send = amax_, .recv = {}, .op = ReduceOp::max, .label = "weight amaxes"})
        .wait(stream);
  }
  if (!column_amax_.empty()) {
    ranks_.dp_shard
        ->all_reduce(stream,
                     {.send = column_amax_, .recv = {}, .op = ReduceOp::max, .label = "weight column amaxes"})
        .wait(stream);
  }
  if (history_.rows.empty()) return;
  fp8::flag_non_finite(
      stream, amax_,
      non_finite_.slice(0, amax_.numel()));  // a scale from the history does not see what saturates
  fp8::delayed_amax(stream, history_, amax_, scale_amax_);
}

void Float8Weights::refresh(Stream& stream) {
  if (is_current_ || entries_.empty()) return;
  is_current_ = true;
  fill_zero(stream, non_finite_);
  measure(stream);
  exchange(stream);
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    if (e.home == Home::local) continue;
    for (int k = 0; k < (e.shares ? 1 : 2); ++k) {
      if (e.home == Home::gathered) {
        make_shard(stream, i, k == 1);
        continue;
      }
      Tensor x = master_rows(i);
      if (!e.padded.empty()) {
        cast(stream, x, e.padded.slice(0, x.rows()));  // the rows after it are zero from the start
        x = e.padded;
      }
      make(stream, i, e.forms[k], x, e.forms[k].straight, e.forms[k].turned, e.forms[k].column_amax);
    }
  }
}

void Float8Weights::make(Stream& stream, size_t i, const Form& form, const Tensor& x,
                         const fp8::Float8Codes& straight, const fp8::Float8Codes& turned,
                         const Tensor& column_amax) {
  const auto slot = static_cast<int64_t>(i);
  fp8::Quantize args{.x = x,
                     .granularity = form.recipe.granularity,
                     .rounding = form.recipe.rounding,
                     .out = straight,
                     .transposed = turned};
  if (form.recipe.granularity == Granularity::tensor) args.amax = scale_amax(i);
  if (form.recipe.granularity == Granularity::row && !turned.empty()) args.column_amax = column_amax;
  if (!counters_.empty() && &form == &entries_[i].forms[0]) {
    args.counters = counters_.slice(slot, slot + 1).reshape({3});
    if (!entries_[i].has_tensor_scale()) args.largest = amax_.slice(slot, slot + 1);
  }
  args.non_finite = non_finite_.slice(slot, slot + 1);
  fp8::quantize(stream, args);
}

void Float8Weights::make_shard(Stream& stream, size_t i, bool backward_form) {
  Entry& e = entries_[i];
  Form& form = e.forms[backward_form];
  const Tensor x = master_rows(i);
  if (backward_form && form.recipe.granularity == Granularity::row) {
    // Scaled per column, as rows of the transposed weight, but stored by rows: shards of rows are what can be
    // gathered.
    if (x.rows() == 0) return make_column_scales(stream, i);
    const Tensor scratch = turn_scratch_.slice(0, x.numel()).reshape({x.cols(), x.rows()});
    const Tensor bytes{scratch.data, form.recipe.format, scratch.shape};
    make(stream, i, form, x, {}, {bytes, form.straight.scale_inverse}, form.column_amax);
    return fp8::transpose_codes(stream, bytes, form.straight.codes.slice(0, x.rows()));
  }
  if (x.rows() == 0 && form.recipe.granularity != Granularity::tensor) return;
  if (is_mx(form.recipe)) return make_mx_shard(stream, i, backward_form);
  const Shape scales = fp8::scale_shape(form.recipe.granularity, x.rows(), x.cols());
  const Tensor& all = form.straight.scale_inverse;
  make(stream, i, form, x,
       {form.straight.codes.slice(0, x.rows()), all.shape == scales ? all : all.slice(0, scales[0])}, {}, {});
}

// The two forms are quantized apart: blocks of columns of the weight are blocks of rows of its transpose.
// Both are stored by rows, scale bytes without their tiles, so that shards of rows make up the whole.
void Float8Weights::make_mx_shard(Stream& stream, size_t i, bool backward_form) {
  Entry& e = entries_[i];
  Form& form = e.forms[backward_form];
  const Tensor x = master_rows(i);
  const Shape shape = backward_form ? turned(x.shape) : x.shape;
  const Shape tiled = fp8::scale_shape(form.recipe.granularity, shape.rows(), shape.cols());
  const Tensor tiles = tile_scratch_.slice(0, tiled.numel()).reshape(tiled);
  const Tensor mine = form.straight.codes.slice(0, x.rows());
  if (backward_form) {
    const Tensor bytes{turn_scratch_.data, form.recipe.format, shape};
    make(stream, i, form, x, {}, {bytes, tiles}, {});
    fp8::transpose_codes(stream, bytes, mine);
  } else {
    make(stream, i, form, x, {mine, tiles}, {}, {});
  }
  const Shape plain = travelling_scales(form.recipe, backward_form, x.rows(), x.cols());
  fp8::untile_scales(stream, {.tiles = tiles,
                              .plain = form.straight.scale_inverse.slice(0, plain[0]),
                              .matrix = shape,
                              .order = travelling_order(backward_form)});
}

// They do not travel: a rank without rows makes them from a row of zeros. In memory of its own: a refresh is
// not part of every step, so it may ask the arena for nothing.
void Float8Weights::make_column_scales(Stream& stream, size_t i) {
  const Entry& e = entries_[i];
  const Form& form = e.forms[1];
  const Tensor row{turn_scratch_.data, DType::bf16, {1, e.columns}};
  const Tensor bytes{
      turn_scratch_.slice(2 * e.columns, 3 * e.columns).data, form.recipe.format, {e.columns, 1}};
  fill_zero(stream, row);
  make(stream, i, form, row, {}, {bytes, form.straight.scale_inverse}, form.column_amax);
}

void Float8Weights::advance_history(Stream& stream) {
  if (!history_.rows.empty()) fp8::advance(stream, history_, amax_);
}

}  // namespace ottava
