#include "models/float8_state.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "core/ops/elementwise.h"
#include "core/ops/host_values.h"
#include "core/sum_of.h"
#include "fp8/step_amax.h"

namespace ottava {
namespace {

constexpr double kLargestFloat = std::numeric_limits<float>::max();

}  // namespace

Float8State::Float8State(Arena& arena, RankGroups& ranks, Options options)
    : ranks_(ranks), options_(std::move(options)), runs_(options_.products.size()) {
  const int64_t slots = slot_count();
  current_ = arena.persistent("fp8 amaxes", DType::u32, {options_.in_flight * slots});
  largest_ = arena.persistent("fp8 step amaxes", DType::u32, {slots});
  non_finite_ = arena.persistent("fp8 flags", DType::u32, {slots});
  if (options_.counts) counters_ = arena.persistent("fp8 counters", DType::i64, {slots, 3});
  if (!options_.has_history()) return;
  scale_amax_ = arena.persistent("fp8 scale amaxes", DType::u32, {slots});
  history_ = {.rows = arena.persistent("fp8 amax history", DType::u32, {options_.amax_history_length, slots}),
              .margin = options_.margin};
}

void Float8State::clear_counters(Stream& stream) {
  if (!counters_.empty()) fill_zero(stream, counters_);
}

void Float8State::begin_step(Stream& stream) {
  runs_.assign(options_.products.size(), {});
  fill_zero(stream, largest_);
  fill_zero(stream, non_finite_);
  begin_forward_only(stream);
  is_forward_only_ = false;
}

void Float8State::begin_micro_batch(Stream& stream) {
  fp8::fold_amax(stream, {.current = current_, .largest = largest_});
}

void Float8State::begin_product(Stream& stream, int64_t product) {
  fp8::fold_amax(stream, {.current = current(2 * product, 2 * product + 2),
                          .largest = largest_.slice(2 * product, 2 * product + 2)});
}

void Float8State::begin_forward_only(Stream& stream) {
  is_forward_only_ = true;
  selected_ = 0;
  fill_zero(stream, current_);
  if (history() && history_.is_full()) fp8::delayed_amax(stream, history_, {.amax = scale_amax_});
}

void Float8State::finish_step(Stream& stream) {
  for (selected_ = 0; selected_ < options_.in_flight; ++selected_)
    fp8::fold_amax(stream, {.current = current(0, slot_count()), .largest = largest_});
  selected_ = 0;
  if (!history()) return;
  // A scale from it does not see what saturates.
  fp8::flag_non_finite(stream, {.amaxes = largest_, .flags = non_finite_});
  if (ranks_.world->size() == 1) return;
  ranks_.world->all_reduce(stream, {.send = largest_, .op = ReduceOp::max, .label = "activation amaxes"})
      .wait(stream);
}

void Float8State::follow_loss_scale(Stream& stream, double loss_scale) {
  const double before = std::exchange(history_loss_scale_, loss_scale);
  if (!history() || history_.steps == 0 || before == 0 || before == loss_scale || stream.is_meta()) return;
  std::vector<uint32_t> amaxes = host_values<uint32_t>(stream, history_.rows);
  for (size_t i = 1; i < amaxes.size(); i += 2) {  // slots of dy are the odd ones of an even number
    const double scaled = std::bit_cast<float>(amaxes[i]) * (loss_scale / before);
    amaxes[i] = std::bit_cast<uint32_t>(static_cast<float>(std::min<double>(scaled, kLargestFloat)));
  }
  copy_from_host(stream, amaxes.data(), history_.rows);
  stream.synchronize();
}

void Float8State::advance_history(Stream& stream) {
  if (history()) fp8::advance(stream, history_, largest_);
}

void Float8State::count_product(int64_t product, fp8::RecipeName recipe, MatmulKind kind) {
  Float8Runs& runs = runs_[product];
  runs.recipe = recipe;
  ++runs.products[static_cast<size_t>(kind)];
}

int64_t Float8State::products_run() const { return sum_of(runs_, &Float8Runs::sum); }

fp8::OperandSlots Float8State::slots(int64_t slot) const {
  auto of = [&](const Tensor& all) { return all.slice(slot, slot + 1); };
  const Tensor amax = current(slot, slot + 1);
  fp8::OperandSlots out{.amax = amax,
                        .scale_amax = scale_is_known(slot) ? of(scale_amax_) : amax,
                        .non_finite = of(non_finite_)};
  if (!counters_.empty() && !is_forward_only_) out.counters = of(counters_).reshape({3});
  return out;
}

}  // namespace ottava
