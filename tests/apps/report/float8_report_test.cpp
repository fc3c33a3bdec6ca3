#include "apps/report/float8_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/ops/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
using fp8::Role;

namespace {

using Operands = std::map<std::string, Float8Operand>;  // by layer and role

Operands by_name(const std::vector<Float8Operand>& operands) {
  Operands out;
  for (const Float8Operand& o : operands) {
    out[o.layer + (o.role == Role::x ? "/x" : o.role == Role::w ? "/w" : "/dy")] = o;
  }
  return out;
}

/// What rank 0 reads where two ranks that shard parameters train on different tokens.
struct Watched {
  Operands first, again;  ///< after the steps, and right after that reading
};

Watched watch(const Float8Config& config, int steps, int64_t micro_batches = 1,
              Recompute recompute = Recompute::nothing) {
  Watched out;
  run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    TrainingShape whole = float8_step();
    whole.batch = 1;
    whole.micro_batches = micro_batches;
    whole.model_options.recompute.assign(2, recompute);
    EngineRun run(in_float8(whole, config),
                  std::make_unique<RankGroups>(
                      groups_over(world, Mesh({.dp_replicate = 1, .dp_shard = 2, .tp = 1}, 2))),
                  {DeviceType::cpu, 0});
    run->parameters().initialise(7);
    const int64_t tokens = 32 * micro_batches;
    for (int step = 0; step < steps; ++step) {
      const auto seed = static_cast<uint32_t>(10 * step + world.rank());
      const std::vector<int32_t> inputs = random_tokens(tokens, 320, seed),
                                 targets = random_tokens(tokens, 320, seed + 5);
      run->train_step({.inputs = inputs, .targets = targets, .document_start = {}, .positions = {}},
                      {.learning_rate = 1e-3, .optimizer_step = step + 1, .valid_tokens = 2 * tokens});
    }
    const Operands mine = by_name(read_float8(*run, *run.ranks().control)),
                   after = by_name(read_float8(*run, *run.ranks().control));
    if (world.rank() == 0) out.first = mine, out.again = after;
  });
  return out;
}

Float8Config recipe(const std::string& name) {
  Float8Config config;
  config.recipe_name = name;
  return config;
}

Float8Operand operand(const std::string& layer, Role role, int64_t elements, int64_t underflow,
                      int64_t saturation) {
  return {.layer = layer,
          .role = role,
          .amax = 2,
          .scale = 224,
          .elements = elements,
          .underflow = underflow,
          .saturation = saturation};
}

}  // namespace

TEST_CASE("what is read of every layer and role: elements of all ranks, steps and micro-batches, once") {
  const Watched w = watch(recipe("tensorwise"), 2, 3);
  REQUIRE(w.first.size() == 3 * 4 * 2);
  // 2 ranks, 2 steps, 3 micro-batches of 32 tokens; 64 inputs, 4 + 2 + 2 heads of 16.
  CHECK(w.first.at("layers.0.attention.wqkv/x").elements == 2 * 2 * 3 * 32 * 64);
  CHECK(w.first.at("layers.0.attention.wqkv/dy").elements == 2 * 2 * 3 * 32 * 128);
  CHECK(w.first.at("layers.1.feed_forward.w2/x").elements == 2 * 2 * 3 * 32 * 192);
  for (const auto& [name, o] : w.first) {
    INFO(name);
    CHECK(o.amax > 0);
    CHECK(o.elements > 0);
    const float max = o.role == Role::dy ? 57344.0f : 448.0f;
    CHECK(o.scale == static_cast<double>(max / static_cast<float>(o.amax)));
    CHECK(o.saturation == 0);
  }
  for (const auto& [name, o] : w.again) {
    INFO(name);
    CHECK(o.elements == 0);
    CHECK(o.underflow == 0);
    CHECK(o.amax == w.first.at(name).amax);
  }
}

TEST_CASE("what is recomputed is not counted again, and neither is its amax") {
  for (const char* name : {"tensorwise", "rowwise", "blockwise", "delayed"}) {
    const Watched once = watch(recipe(name), 1);
    for (Recompute recompute : {Recompute::elementwise, Recompute::all_but_attention, Recompute::block}) {
      INFO(name << ", mode " << static_cast<int>(recompute));
      const Watched again = watch(recipe(name), 1, 1, recompute);
      REQUIRE(again.first.size() == once.first.size());
      for (const auto& [key, operand] : again.first) {
        if (operand.role == Role::w) continue;  // made again where whole weights were let go of
        INFO(key);
        CHECK(operand.elements == once.first.at(key).elements);
        CHECK(operand.underflow == once.first.at(key).underflow);
        CHECK(operand.amax == once.first.at(key).amax);
      }
    }
  }
}

// What a history remembers of a step: neither the last micro-batch's amax alone nor the first one's would do.
TEST_CASE("a step's amaxes are the largest of its micro-batches, operand by operand") {
  constexpr int64_t kTokens = 32, kParts = 3;
  const std::vector<int32_t> inputs = random_tokens(kParts * kTokens, 320, 3),
                             targets = random_tokens(kParts * kTokens, 320, 4);
  auto amaxes = [&](int64_t first, int64_t count) {
    TrainingShape shape = in_float8(float8_step(), recipe("tensorwise"));
    shape.batch = 1;
    shape.micro_batches = count;
    EngineRun run(shape);
    run->parameters().initialise(7);
    const auto begin = static_cast<size_t>(first * kTokens), size = static_cast<size_t>(count * kTokens);
    run->train_step({.inputs = std::span(inputs).subspan(begin, size),
                     .targets = std::span(targets).subspan(begin, size),
                     .document_start = {},
                     .positions = {}},
                    {.learning_rate = 1e-3, .valid_tokens = kParts * kTokens});
    const Tensor all = run->float8()->step_amax();
    return std::vector<uint32_t>(all.as<uint32_t>(), all.as<uint32_t>() + all.numel());
  };
  const std::vector<uint32_t> together = amaxes(0, kParts);
  std::vector<uint32_t> largest(together.size(), 0);
  for (int64_t part = 0; part < kParts; ++part) {
    const std::vector<uint32_t> own = amaxes(part, 1);
    CHECK(own != together);
    for (size_t i = 0; i < own.size(); ++i) largest[i] = std::max(largest[i], own[i]);
  }
  CHECK(together == largest);
}

TEST_CASE("a weight is quantized once per optimizer step, however many micro-batches read it") {
  for (int64_t micro_batches : {1, 4}) {
    Float8Config config = recipe("tensorwise");
    config.enable_fsdp_float8_all_gather = true;
    const Watched w = watch(config, 3, micro_batches);
    CHECK(w.first.at("layers.0.attention.wqkv/w").elements == 3 * 128 * 64);
    CHECK(w.first.at("layers.1.feed_forward.w2/w").elements == 3 * 64 * 192);
  }
}

TEST_CASE("the amax is exact in every recipe, and the scale the smallest") {
  const Watched exact = watch(recipe("tensorwise"), 1);
  for (const std::string& name : all_recipes()) {
    INFO(name);
    Operands got = watch(recipe(name), 1).first;
    // The first product's input is the same whatever comes after it, and so is every weight.
    const Float8Operand x = got.at("layers.0.attention.wqkv/x");
    CHECK(x.amax == exact.first.at("layers.0.attention.wqkv/x").amax);
    CHECK(x.elements == 2 * 32 * 64);
    const bool rounds = name.starts_with("rowwise") || name == "blockwise" || name == "mxfp8";
    CHECK(x.scale == (rounds ? std::exp2(std::floor(std::log2(448 / x.amax)))
                             : exact.first.at("layers.0.attention.wqkv/x").scale));
    for (const auto& [key, operand] : got) {
      INFO(key);
      CHECK(operand.amax > 0);
      if (operand.role == Role::w) CHECK(operand.amax == exact.first.at(key).amax);
    }
  }
}

TEST_CASE("of recipe delayed the scale is made from the history, with its margin") {
  Float8Config config = recipe("delayed");
  config.amax_history_length = 2;
  config.margin = 1;
  const Float8Operand x = watch(config, 3).first.at("layers.0.attention.wqkv/x");
  // The history's largest amax is no less than the last step's, and the margin halves the scale.
  CHECK(x.scale > 0);
  CHECK(x.scale <= 448 / x.amax / 2);
  // A margin may leave the range of float; scales do not.
  Float8Config wide = config;
  wide.margin = 140;
  CHECK(watch(wide, 3).first.at("layers.0.attention.wqkv/x").scale ==
        static_cast<double>(448.0f / std::numeric_limits<float>::max()));
  config.amax_history_length = 8;  // not full yet: of this step's amax
  const Float8Operand filling = watch(config, 3).first.at("layers.0.attention.wqkv/x");
  CHECK(filling.scale == static_cast<double>(448.0f / static_cast<float>(filling.amax)));
}

TEST_CASE("of recipe delayed an operand that was always zero has the scale that the next step takes") {
  Float8Config config = recipe("delayed");
  config.amax_history_length = 2;
  config.margin = 1;
  TrainingShape shape = in_float8(float8_step(), config);
  shape.batch = shape.micro_batches = 1;
  EngineRun run(shape);
  Fsdp& parameters = run->parameters();
  parameters.initialise(7);
  const auto w2 = std::ranges::find(parameters.specs(), "layers.0.feed_forward.w2", &ParameterSpec::name);
  fill_zero(run->context().stream,
            parameters.shard(static_cast<int>(w2 - parameters.specs().begin())).master);
  parameters.refresh_compute_copies();
  const std::vector<int32_t> inputs = random_tokens(32, 320, 3), targets = random_tokens(32, 320, 4);
  for (int step = 1; step <= 2; ++step)
    run->train_step({.inputs = inputs, .targets = targets, .document_start = {}, .positions = {}},
                    {.learning_rate = 0, .optimizer_step = step, .valid_tokens = 32});
  const Operands read = by_name(read_float8(*run, *run.ranks().control));
  for (const char* name : {"layers.0.feed_forward.w2/w", "layers.0.feed_forward.w13/dy"}) {
    INFO(name);
    CHECK(read.at(name).amax == 0);
    CHECK(read.at(name).scale == (read.at(name).role == Role::dy ? 57344.0 : 448.0) / 2);
  }
}

TEST_CASE("nothing is read without statistics, or without FP8") {
  Float8Config config;
  config.enable_statistics = false;
  CHECK(watch(config, 1).first.empty());
  EngineRun plain(float8_step());
  CHECK(read_float8(*plain, *plain.ranks().control).empty());
}

TEST_CASE("names of the figures, and the worst of all layers") {
  const auto scalars = float8_scalars({operand("layers.0.attention.wqkv", Role::x, 1000, 5, 0),
                                       operand("layers.1.attention.wqkv", Role::x, 1000, 20, 1)});
  const std::map<std::string, double> values(scalars.begin(), scalars.end());
  CHECK(values.size() == 10);
  CHECK(values.at("fp8/layers.0.attention.wqkv/x/amax") == 2);
  CHECK(values.at("fp8/layers.0.attention.wqkv/x/scale") == 224);
  CHECK(values.at("fp8/layers.0.attention.wqkv/x/underflow") == 0.005);
  CHECK(values.at("fp8/layers.0.attention.wqkv/x/saturation") == 0);
  CHECK(values.at("fp8/worst/x/underflow") == 0.02);
  CHECK(values.at("fp8/worst/x/saturation") == 0.001);
}

TEST_CASE("an alert names role, layers, fractions and what to do, once until the layer recovers") {
  Float8Alerts alerts{Float8Config{}};
  CHECK(alerts.check({operand("a", Role::x, 1000, 1, 1), operand("b", Role::dy, 1000, 50, 0)})
            .empty());  // at the thresholds
  const auto first = alerts.check({operand("a", Role::x, 1000, 2, 0), operand("b", Role::x, 1000, 30, 0)});
  REQUIRE(first.size() == 1);
  CHECK(first[0] ==
        "FP8 underflow of x above 0.1%: b 3%, a 0.2%; scales of smaller groups lose less: use recipe_name "
        "blockwise, or keep such layers in bf16 with entries {match: LAYER, recipe: bf16} of "
        "quantize.linear.float8.policy");
  CHECK(alerts.check({operand("a", Role::x, 1000, 3, 0), operand("b", Role::x, 1000, 30, 0)}).empty());
  // Three quarters of the threshold do not count as recovered.
  CHECK(alerts.check({operand("a", Role::x, 4000, 3, 0), operand("b", Role::x, 4000, 3, 0)}).empty());
  CHECK(alerts.check({operand("a", Role::x, 1000, 3, 0), operand("b", Role::x, 1000, 30, 0)}).empty());
  // b recovers and is hit again; a stays as it is.
  CHECK(alerts.check({operand("a", Role::x, 1000, 3, 0), operand("b", Role::x, 1000, 0, 0)}).empty());
  const auto later = alerts.check({operand("a", Role::x, 1000, 3, 0), operand("b", Role::x, 1000, 40, 0)});
  REQUIRE(later.size() == 1);
  CHECK_THAT(later[0], Contains(": b 4%; "));
}

TEST_CASE("gradients may lose more, saturation is an alert of its own, and few layers are named") {
  Float8Alerts alerts{Float8Config{}};
  const auto gradient = alerts.check({operand("a", Role::dy, 1000, 51, 0)});
  REQUIRE(gradient.size() == 1);
  CHECK_THAT(gradient[0],
             Contains("FP8 underflow of dy above 5%: a 5.1%; the weight gradient may need high precision"));
  std::vector<Float8Operand> many;
  for (int i = 0; i < 7; ++i) {
    many.push_back(operand(fmt::format("layers.{}", i), Role::w, 1000, 0, 2 + i));
    many.back().recipe = fp8::RecipeName::delayed;
  }
  const auto saturation = alerts.check(many);
  REQUIRE(saturation.size() == 1);
  CHECK_THAT(saturation[0], Contains("FP8 saturation of w above 0.1%: layers.6 0.8%, layers.5 0.7%, layers.4 "
                                     "0.6%, layers.3 0.5% and 3 more layers; ") &&
                                Contains("margin"));
}

TEST_CASE("advice on underflow is none that the recipe follows already") {
  struct Row {
    std::string_view recipe;
    Role role;
    const char* advice;
  };
  for (const Row& row : std::initializer_list<Row>{
           {"tensorwise", Role::dy, "the weight gradient may need high precision: use"},
           {"blockwise", Role::dy, "the weight gradient may need high precision: use"},
           {"rowwise_with_gw_hp", Role::dy,
            "E5M2 holds smaller numbers than E4M3: use recipe_name tensorwise_with_gw_hp, or keep"},
           {"tensorwise_with_gw_hp", Role::dy, "keep such layers"},
           {"rowwise_with_gw_hp", Role::x, "scales of smaller groups lose less: use recipe_name blockwise"},
           {"blockwise", Role::w, "keep such layers"},
           {"mxfp8", Role::x, "keep such layers"}}) {
    INFO(row.recipe);
    Float8Operand lossy = operand("a", row.role, 1000, 100, 0);
    lossy.recipe = fp8::parse_recipe(row.recipe);
    const auto warnings = Float8Alerts(Float8Config{}).check({lossy});
    REQUIRE(warnings.size() == 1);
    CHECK_THAT(warnings[0],
               Contains(fmt::format(": a 10%; {}", row.advice)) && Contains("{match: LAYER, recipe: bf16}"));
  }
}

// Its own amax gives each other value a scale with which it does not saturate.
TEST_CASE("what saturates without a history is called an infinity or NaN") {
  const auto warnings = Float8Alerts(Float8Config{}).check({operand("a", Role::x, 1000, 0, 1000)});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] ==
        "FP8 saturation of x above 0.1%: a 100%; an infinity or NaN in a tensor leaves it without a scale: "
        "lower optimizer.lr, raise lr_scheduler.warmup_steps, or check the data");
}

TEST_CASE("thresholds of alerts are the configuration's, and 1 means never") {
  const std::vector<Float8Operand> operands{operand("a", Role::x, 1000, 20, 20),
                                            operand("a", Role::dy, 1000, 200, 0)};
  auto warnings = [&](const Float8Config& config) { return Float8Alerts(config).check(operands); };
  CHECK(warnings({}).size() == 3);
  CHECK(
      warnings({.alert_underflow = 0.02, .alert_gradient_underflow = 0.2, .alert_saturation = 0.02}).empty());
  const auto one = warnings({.alert_underflow = 0.019, .alert_gradient_underflow = 1, .alert_saturation = 1});
  REQUIRE(one.size() == 1);
  CHECK_THAT(one[0], Contains("FP8 underflow of x above 1.9%: a 2%"));
  const auto gradient =
      warnings({.alert_underflow = 1, .alert_gradient_underflow = 0.1, .alert_saturation = 1});
  REQUIRE(gradient.size() == 1);
  CHECK_THAT(gradient[0], Contains("of dy above 10%"));
  const auto saturation =
      warnings({.alert_underflow = 1, .alert_gradient_underflow = 1, .alert_saturation = 0});
  REQUIRE(saturation.size() == 1);
  CHECK_THAT(saturation[0], Contains("FP8 saturation of x above 0%"));
}
