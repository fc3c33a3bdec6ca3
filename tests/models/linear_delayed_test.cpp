#include "tests/models/linear_on_rank.h"
#include "tests/support/catch.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;
using Producer = Float8Product::Producer;

namespace {

const Shape kX{160, 192}, kDy{160, 320};

/// What the second of two steps of recipe delayed made, whose scales come from the first.
struct DelayedStep {
  std::vector<float> y, dx, dw;
  std::vector<uint32_t> amaxes;
  std::vector<int64_t> counters;
  int64_t kept_bytes = 0;
  bool codes_were_produced = false;
};
DelayedStep delayed_step(Producer producer) {
  DelayedStep out;
  RankGroups ranks = solo_rank_groups();
  LinearSetting setting{
      .specs = {{.name = "w",
                 .parts = {{.name = "w", .hf_name = "w", .rows = kDy[1], .groups = kDy[1], .init = {}}},
                 .columns = kX[1]}},
      .pieces = {{{0, kDy[1]}, fp8::RecipeName::delayed}},
      .state = {.amax_history_length = 1, .counts = true},
      .producers = {.x = producer, .dy = producer}};
  CostRecorder recorder;
  plan_and_run(recorder, [&](Stream& stream, Arena& arena, int64_t workspace_bytes) {
    const bool is_planning = arena.is_recording();
    LinearOnRank layer(stream, arena, ranks, setting, workspace_bytes);
    const Linear& linear = layer.linear;
    StepContext& c = layer.context;
    // What a norm does: everything it has places for, from the same values.
    auto produce = [&](const std::vector<float>& values, const LinearOperand& to, Shape shape) {
      std::vector<bf16> rounded(values.begin(), values.end());
      const Tensor from = view_of(rounded.data(), shape);
      if (to.values) cast(stream, from, to.values);
      if (!to.amax.empty()) fp8::amax(stream, from, to.amax);
      const fp8::RowOutput& q = to.float8.output;
      out.codes_were_produced = !q.empty();
      if (q.empty()) return;
      fp8::quantize(stream, {.x = from,
                             .granularity = q.granularity,
                             .rounding = q.rounding,
                             .amax = q.amax,
                             .out = q.out,
                             .counters = q.counters,
                             .non_finite = q.non_finite,
                             .largest = q.largest});
    };
    // One plan of the memory serves a step that fills the history and one that reads it.
    for (uint64_t step = 0; step < (is_planning ? 1 : 2); ++step) {
      Arena::Phase phase(arena, "test");
      layer.begin_step();
      const float grows = step == 0 ? 3 : 5;  // past the scale of the first step: some saturate
      LinearInput saved;
      LinearOperand x = linear.place_input(c, "x", kX, &saved);
      produce(normal_values(kX.numel(), step, DType::bf16, grows), x, kX);
      Allocation y = linear.forward(c, x, &saved);
      LinearOperand dy = linear.place_output_gradient(c, c.activation("dy", DType::bf16, kDy));
      produce(normal_values(kDy.numel(), 7 + step, DType::bf16, 1e-3f * grows), dy, kDy);
      LinearOutputGradient gradient = linear.output_gradient(c, dy);
      Allocation dx = linear.input_gradient(c, gradient);
      linear.weight_gradient(c, gradient, saved);
      layer.state.finish_step(stream);
      layer.state.advance_history(stream);
      if (step == 0) continue;
      out.y = download(stream, y), out.dx = download(stream, dx);
      out.dw = download(stream, layer.parameters.shard(0).gradient);
      const uint32_t* amaxes = layer.state.step_amax().as<uint32_t>();
      out.amaxes.assign(amaxes, amaxes + 2);
      const int64_t* counters = layer.state.all_counters().as<int64_t>();
      out.counters.assign(counters, counters + 6);
      for (const Float8Allocation& m : saved.pieces)
        out.kept_bytes += fp8::Float8Codes(m.rowwise).bytes() + fp8::Float8Codes(m.columnwise).bytes();
    }
  });
  return out;
}

}  // namespace

TEST_CASE(
    "linear: codes that producers write with scales of earlier steps are those made here, bit for bit") {
  const DelayedStep apart = delayed_step(Producer::amax), produced = delayed_step(Producer::codes);
  CHECK_FALSE(apart.codes_were_produced);
  CHECK(produced.codes_were_produced);
  CHECK((produced.y == apart.y));
  CHECK((produced.dx == apart.dx));
  CHECK((produced.dw == apart.dw));
  CHECK(produced.amaxes == apart.amaxes);
  CHECK(produced.counters == apart.counters);
  CHECK(produced.counters[2] > 0);  // saturated
  CHECK(produced.kept_bytes == apart.kept_bytes);
}
