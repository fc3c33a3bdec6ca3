#include "parallel/sharding/float8_weights.h"

#include <algorithm>
#include <utility>

#include "core/cost.h"
#include "core/ops/elementwise.h"
#include "core/round_up.h"
#include "fp8/quantize_operand.h"
#include "fp8/step_amax.h"
#include "parallel/sharding/fsdp.h"

// How codes are made: where they live, what is measured for their scales, what ranks exchange.
namespace ottava {
namespace {

fp8::Float8Codes persistent(Arena& arena, const std::string& name, const fp8::OperandRecipe& recipe,
                            Shape shape, Shape scales) {
  return {arena.persistent(name + ".fp8", recipe.format, shape, MemoryCategory::compute),
          arena.persistent(name + ".fp8 scales", fp8::scale_dtype(recipe.granularity), scales,
                           MemoryCategory::compute)};
}
Shape transposed(const Shape& shape) { return {shape.cols(), shape.rows()}; }
/// What all entries' tensors hold of one.
Tensor slot_of(const Tensor& all, int64_t entry) { return all.slice(entry, entry + 1); }

}  // namespace

bool Float8Weights::Entry::has_amax() const {
  return std::any_of(std::begin(forms), std::end(forms), [](const Form& form) {
    return fp8::traits(form.recipe.granularity).amax == fp8::AmaxSource::given;
  });
}

bool Float8Weights::Entry::exchanges_column_amax() const {
  return home == Home::gathered && travel.exchanges_column_amax;
}

Float8Weights::Float8Weights(Arena& arena, RankGroups& ranks, const std::vector<ParameterShard>& shards,
                             Options options, Device target)
    : arena_(arena),
      ranks_(ranks),
      shards_(shards),
      options_(std::move(options)),
      target_(target),
      entries_(options_.specs.size()) {
  const auto count = std::ssize(entries_);
  auto slots = [&](std::string_view name, DType dtype, Shape shape) {
    return arena.persistent(name, dtype, shape);
  };
  amax_ = slots("weight amaxes", DType::u32, {count});
  updated_amax_ = slots("updated weight amaxes", DType::u32, {count});
  non_finite_ = slots("weight flags", DType::u32, {count + 1});
  if (options_.counts) counters_ = slots("weight counters", DType::i64, {count, 3});
  const bool delays = std::ranges::any_of(options_.specs, &Float8WeightSpec::is_delayed);
  if (delays) {
    scale_amax_ = slots("weight scale amaxes", DType::u32, {count});
    history_ = {.rows = slots("weight amax history", DType::u32, {options_.amax_history_length, count}),
                .margin = options_.margin};
  }
  for (size_t i = 0; i < entries_.size(); ++i) place(arena, i);

  place_shared(arena);
}

/// What all entries share: memory for shards whose codes or scales are stored in another form than they are
/// made, and the amaxes of columns, one after the other.
void Float8Weights::place_shared(Arena& arena) {
  int64_t columns = 0, scratch = 0, tiles = 0;
  for (const Entry& e : entries_) {
    if (!e.exchanges_column_amax()) continue;
    columns += e.columns;
    // Room for make_column_scales() too: a row in bf16 and its codes.
    scratch = std::max(scratch, std::max<int64_t>(e.segment_rows, 3) * e.columns);
  }
  for (const Entry& e : entries_) {
    const fp8::OperandRecipe& recipe = e.forms[0].recipe;
    if (e.home != Home::gathered || scale_form(recipe) != ScaleForm::tiled) continue;
    scratch = std::max(scratch, e.segment_rows * e.columns);
    for (const Shape& shape : {Shape{e.segment_rows, e.columns}, Shape{e.columns, e.segment_rows}})
      tiles = std::max(tiles, fp8::scale_shape(recipe.granularity, shape.rows(), shape.cols()).numel());
  }
  if (tiles > 0)
    tile_scratch_ = arena.persistent("weight scale tiles", DType::e8m0, {tiles}, MemoryCategory::compute);
  if (scratch > 0)
    transpose_scratch_ = arena.persistent("weight transpose", DType::u8, {scratch}, MemoryCategory::compute);
  if (columns == 0) return;
  column_amax_ = arena.persistent("weight column amaxes", DType::u32, {columns});
  columns = 0;
  for (Entry& e : entries_) {
    if (!e.exchanges_column_amax()) continue;
    e.forms[1].column_amax = column_amax_.slice(columns, columns + e.columns);
    columns += e.columns;
  }
}

void Float8Weights::place(Arena& arena, size_t i) {
  Entry& e = entries_[i];
  const Float8WeightSpec& spec = options_.specs[i];
  const ParameterShard& shard = shards_[spec.parameter];
  const int shards = ranks_.dp_shard->size();
  e.travel = float8_weight_travel(spec, shard.slice[0], shards);
  e.home = !shard.is_held         ? Home::elsewhere
           : shards == 1          ? Home::resident
           : e.travel.in_codes    ? Home::gathered
           : options_.keeps_codes ? Home::kept
                                  : Home::local;
  e.forms[0].recipe = spec.forward;
  e.forms[1].recipe = spec.backward;
  e.rows = std::max(spec.rows.size(), spec.padded_rows);
  e.columns = shard.slice[1];
  const int64_t begin = std::max(shard.rows.begin, spec.rows.begin),
                end = std::min(shard.rows.end, spec.rows.end);
  e.shard = {begin, std::max(begin, end)};
  const int64_t multiple = shards * e.travel.alignment;
  e.segment_rows = pieces_of(e.rows, multiple) * e.travel.alignment;
  for (WeightUse use : e.uses()) {
    e.form(use).whole.granularity = e.form(use).recipe.granularity;
    if (e.home == Home::resident || e.home == Home::kept) place_resident(arena, i, use);
    if (e.home == Home::gathered) place_gathered(arena, i, use);
  }
  if (e.home == Home::resident && spec.padded_rows > spec.rows.size()) {
    e.padded =
        arena.persistent(spec.name + ".padded", DType::bf16, {e.rows, e.columns}, MemoryCategory::compute);
  }
}

void Float8Weights::place_resident(Arena& arena, size_t i, WeightUse use) {
  Entry& e = entries_[i];
  Form& form = e.form(use);
  const bool is_backward = use == WeightUse::backward;
  const std::string name = options_.specs[i].name + (is_backward ? ".backward" : "");
  auto codes = [&](const std::string& called, Shape shape) {
    return persistent(arena, called, form.recipe, shape,
                      fp8::scale_shape(form.recipe.granularity, shape.rows(), shape.cols()));
  };
  const bool columnwise = reads_columnwise(form.recipe, e.travel.shares_codes ? WeightUse::both : use);
  if (!is_backward || !columnwise) form.whole.rowwise = codes(name, {e.rows, e.columns});
  if (columnwise) form.whole.columnwise = codes(name + ".transposed", {e.columns, e.rows});
  if (fp8::takes_column_amax(form.whole)) {
    form.column_amax = arena.persistent(name + ".column amax", DType::u32, {e.columns});
  }
}

void Float8Weights::place_gathered(Arena& arena, size_t i, WeightUse use) {
  Entry& e = entries_[i];
  Form& form = e.form(use);
  const bool by_columns = use == WeightUse::backward && e.exchanges_column_amax();
  form.shard = persistent(
      arena, options_.specs[i].name + (use == WeightUse::backward ? ".backward" : ""), form.recipe,
      {e.segment_rows, e.columns},
      by_columns ? Shape{e.columns} : travelling_scales(form.recipe, use, e.segment_rows, e.columns));
}

Tensor Float8Weights::master_rows(size_t i) const {
  const ParameterShard& shard = shards_[options_.specs[i].parameter];
  const RowRange& held = entries_[i].shard;
  return shard.master.slice(held.begin - shard.rows.begin, held.end - shard.rows.begin);
}

Tensor Float8Weights::scale_amax(size_t i) const {
  return slot_of(options_.specs[i].is_delayed ? scale_amax_ : amax_, i);
}

bool Float8Weights::has_scale_of_whole(size_t i) const {
  const Entry& e = entries_[i];
  return e.has_amax() && options_.specs[i].rows.size() == shards_[options_.specs[i].parameter].slice[0];
}

void Float8Weights::clear_counters(Stream& stream) {
  if (!counters_.empty()) fill_zero(stream, counters_);
}

void Float8Weights::begin_update(Stream& stream) { fill_zero(stream, updated_amax_); }

Tensor Float8Weights::updated_amax(int parameter) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (options_.specs[i].parameter == parameter && has_scale_of_whole(i)) return slot_of(updated_amax_, i);
  }
  return {};
}

void Float8Weights::measure(Stream& stream) {
  if (is_measured_) {
    copy(stream, updated_amax_, amax_);
  } else {
    fill_zero(stream, amax_);
  }
  if (!column_amax_.empty()) fill_zero(stream, column_amax_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    if (e.shard.size() == 0) continue;
    const bool is_known = is_measured_ && has_scale_of_whole(i);
    if (e.has_amax() && !is_known) fp8::amax(stream, master_rows(i), slot_of(amax_, i));
    if (e.exchanges_column_amax()) fp8::column_amax(stream, master_rows(i), e.forms[1].column_amax);
  }
}

void Float8Weights::exchange(Stream& stream) {
  const bool per_tensor = std::ranges::any_of(entries_, &Entry::has_amax);
  if (per_tensor && ranks_.stage->size() > 1) {
    ranks_.stage->all_reduce(stream, {.send = amax_, .op = ReduceOp::max, .label = "weight amaxes"})
        .wait(stream);
  }
  if (!column_amax_.empty()) {
    ranks_.dp_shard
        ->all_reduce(stream, {.send = column_amax_, .op = ReduceOp::max, .label = "weight column amaxes"})
        .wait(stream);
  }
  if (history_.rows.empty()) return;
  // A scale from the history does not see what saturates.
  fp8::flag_non_finite(stream, {.amaxes = amax_, .flags = non_finite_.slice(0, amax_.numel())});
  fp8::delayed_amax(stream, history_, {.current = amax_, .amax = scale_amax_});
}

void Float8Weights::refresh(Stream& stream, WeightUse uses) {
  // Not only after a change, so that every step makes the same requests to the arena and the ranks.
  for (Entry& e : entries_) e.holds_codes = false;
  uses_ = uses;
  if (is_current_ || entries_.empty()) return;
  is_current_ = true;
  fill_zero(stream, non_finite_);
  measure(stream);
  exchange(stream);
  for (size_t i = 0; i < entries_.size(); ++i) {
    for (WeightUse use : entries_[i].uses()) {
      if (entries_[i].home == Home::resident) make_resident(stream, i, use);
      if (entries_[i].home == Home::gathered) make_shard(stream, i, use);
    }
  }
}

void Float8Weights::make(Stream& stream, size_t i, const Form& form, const Tensor& x,
                         const fp8::Float8Tensor& out, const Tensor& column_amax) {
  const Entry& e = entries_[i];
  const bool is_of_gathered = e.home == Home::local || e.home == Home::kept;
  const CostRecorder::Scope scope(
      is_of_gathered && stream.type() == DeviceType::meta ? &stream.recorder() : nullptr,
      std::string(kGatheredWeights));
  fp8::OperandSlots slots{.scale_amax = scale_amax(i), .non_finite = slot_of(non_finite_, i)};
  if (!counters_.empty() && &form == &e.forms[0]) {
    slots.counters = slot_of(counters_, i).reshape({3});
    if (!e.has_amax()) slots.amax = slot_of(amax_, i);
  }
  fp8::quantize_operand(stream,
                        {.x = x,
                         .out = out,
                         .rounding = form.recipe.rounding,
                         .slots = slots,
                         .column_amax = column_amax,
                         .measured = e.home == Home::gathered ? fp8::Measured::all : fp8::Measured::amax});
}

void Float8Weights::make_resident(Stream& stream, size_t i, WeightUse use) {
  Entry& e = entries_[i];
  Tensor x = master_rows(i);
  if (!e.padded.empty()) {
    cast(stream, x, e.padded.slice(0, x.rows()));
    fill_zero(stream, e.padded.slice(x.rows(), e.rows));
    x = e.padded;
  }
  const Form& form = e.form(use);
  make(stream, i, form, x, form.whole, form.column_amax);
}

// Codes are stored by rows, whichever way they are scaled, and tiled scales untiled, because only shards of
// rows can be gathered.
void Float8Weights::make_shard(Stream& stream, size_t i, WeightUse use) {
  Entry& e = entries_[i];
  const Form& form = e.form(use);
  const fp8::Granularity granularity = form.recipe.granularity;
  const Tensor x = master_rows(i);
  const bool columnwise = use == WeightUse::backward &&
                          fp8::columnwise_codes(granularity, target_.type) == fp8::ColumnwiseCodes::quantized;
  const bool in_tiles = scale_form(form.recipe, columnwise) == ScaleForm::tiled;
  if (x.rows() == 0 && e.scales_travel(use)) return;
  if (x.rows() == 0 && columnwise) return make_column_scales(stream, i);
  fp8::Float8Codes mine{form.shard.codes.slice(0, x.rows()), form.shard.scale_inverse};
  if (e.scales_travel(use)) {
    mine.scale_inverse =
        mine.scale_inverse.slice(0, travelling_scales(form.recipe, use, x.rows(), x.cols())[0]);
  }
  const Shape matrix = columnwise ? transposed(x.shape) : x.shape;
  fp8::Float8Codes made = mine;
  if (columnwise) made.codes = {transpose_scratch_.data, form.recipe.format, matrix};
  if (in_tiles) {
    const Shape tiles = fp8::scale_shape(granularity, matrix.rows(), matrix.cols());
    made.scale_inverse = tile_scratch_.slice(0, tiles.numel()).reshape(tiles);
  }
  fp8::Float8Tensor out{.granularity = granularity};
  (columnwise ? out.columnwise : out.rowwise) = made;
  make(stream, i, form, x, out, form.column_amax);
  if (columnwise) fp8::transpose_codes(stream, made.codes, mine.codes);
  if (in_tiles) {
    fp8::untile_scales(stream, {.tiles = made.scale_inverse,
                                .plain = mine.scale_inverse,
                                .matrix = matrix,
                                .order = travelling_order(use)});
  }
}

// These scales do not travel, so a rank without rows makes them from a row of zeros. It does so in memory of
// its own: a refresh is not part of every step, so it must not allocate from the arena.
void Float8Weights::make_column_scales(Stream& stream, size_t i) {
  const Entry& e = entries_[i];
  const Form& form = e.forms[1];
  const Tensor row{transpose_scratch_.data, DType::bf16, {1, e.columns}};
  const Tensor codes{
      transpose_scratch_.slice(2 * e.columns, 3 * e.columns).data, form.recipe.format, {e.columns, 1}};
  fill_zero(stream, row);
  make(stream, i, form, row,
       {.columnwise = {codes, form.shard.scale_inverse}, .granularity = form.recipe.granularity},
       form.column_amax);
}

void Float8Weights::advance_history(Stream& stream) {
  if (!history_.rows.empty()) fp8::advance(stream, history_, amax_);
}

}  // namespace ottava
