#include "core/ops/cross_entropy.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/tiny_training.h"

// The output layer in FP8: among two ranks or more, 2256 tokens do not divide into multiples of 16. Three
// ways out.

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr int64_t kOdd = 2256, kEven = 2560;

TrainingShape step_with(int64_t vocabulary) {
  TrainingShape shape = float8_step();
  shape.model.layers = 1;
  shape.model.heads = 8;
  shape.model.ffn_dim = 256;
  shape.model.vocab_size = vocabulary;
  shape.batch = 1;
  shape.groups.clear();
  return shape;
}

Float8Config forced(const char* recipe = "tensorwise", bool pads = false) {
  return {.recipe_name = recipe, .policy = {{"output", recipe}}, .pad_vocabulary = pads};
}

std::string refusal(int64_t vocabulary, int tp) {
  try {
    in_float8(step_with(vocabulary), forced(), tp);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

void require_near(const LayoutCurve& got, const LayoutCurve& want, double tolerance) {
  for (size_t i = 0; i < want.loss.size(); ++i) CHECK(got.loss[i] == Approx(want.loss[i]).epsilon(tolerance));
}

}  // namespace

TEST_CASE("vocabulary: the output layer in FP8 fits 2560 tokens on 1, 2, 4 and 8 ranks, 2256 only on one") {
  for (int tp : {1, 2, 4, 8}) {
    INFO("tp " << tp);
    CHECK(refusal(kEven, tp) == "");
    if (tp == 1) {
      CHECK(refusal(kOdd, tp) == "");
      continue;
    }
    CHECK_THAT(refusal(kOdd, tp),
               Catch::Contains(fmt::format("2256 rows / tp {} = {} is not a multiple of 16 (2256/16 = 141)",
                                           tp, kOdd / tp)) &&
                   Catch::Contains("a vocabulary of 2560") && Catch::Contains("pad_vocabulary: true") &&
                   Catch::Contains("recipe bf16"));
  }
}

TEST_CASE("vocabulary: 2560 tokens, padding and high precision all train, near to bf16") {
  const LayoutCurve even = train_on(step_with(kEven), {}, 2), odd = train_on(step_with(kOdd), {}, 2);
  for (int tp : {1, 2, 4, 8}) {
    INFO("tp " << tp);
    const Layout layout{.tp = tp};
    require_near(train_on(in_float8(step_with(kEven), forced(), tp), layout, 2), even, 2e-3);
    require_near(train_on(in_float8(step_with(kOdd), {}, tp), layout, 2), odd, 2e-3);
    const TrainingShape padded = in_float8(step_with(kOdd), forced("tensorwise", true), tp);
    CHECK(padded.float8.output.padded_rows == (tp == 1 ? 0 : (kOdd / tp + 15) / 16 * 16));
    require_near(train_on(padded, layout, 2), odd, 2e-3);
  }
}

// Padding rows are not parameters: they have no gradient, no optimizer state, and no row in a file.
TEST_CASE(
    "vocabulary: padding is outside of softmax and weights: the curve is that of what needs no padding") {
  for (const char* recipe : {"tensorwise", "tensorwise_with_gw_hp"}) {
    TrainingShape whole = step_with(kOdd), padded = in_float8(whole, forced(recipe), 1);
    const LayoutCurve plain = train_on(padded, {}, 2);
    // One rank whose output runs on 16 rows more than there are.
    padded.float8.output.padded_rows = kOdd + 16;
    for (Float8WeightSpec& spec : padded.float8.weights.specs) {
      if (spec.name == "output") spec.padded_rows = kOdd + 16;
    }
    padded.parameters.float8 = padded.float8.weights;
    for (const Layout& layout : {Layout{}, Layout{.dp_shard = 2}}) {
      TrainingShape on = padded;
      on.batch = layout.dp_shard;
      whole.batch = layout.dp_shard;
      const LayoutCurve want =
          layout.dp_shard == 1 ? plain : train_on(in_float8(whole, forced(recipe), 1), layout, 2);
      const LayoutCurve got = train_on(on, layout, 2);
      CHECK(got.loss[0] == want.loss[0]);
      require_near(got, want, 1e-5);  // sums over the vocabulary are made in other pieces
    }
  }
  EngineRun run(in_float8(step_with(kEven - 8), forced("tensorwise", true)));
  CHECK(run->parameters().specs().back().rows() == kEven - 8);
  CHECK(run->parameters().shard(static_cast<int>(run->parameters().specs().size()) - 1).gradient.rows() ==
        kEven - 8);
}

TEST_CASE("vocabulary: chunks of the loss that FP8 products do not fit are refused with the arithmetic") {
  TinyTraining tiny;
  const Overrides base =
      words("--training.mixed_precision_param bfloat16 --model.converters [quantize.linear.float8]") +
      Overrides{"--quantize.linear.float8.policy", "[{match: output, recipe: tensorwise}]"};
  auto with = [&](const char* chunk, const Overrides& more = {}) {
    const Config config = tiny.config("run", base + Overrides{"--model.loss_chunk_tokens", chunk} + more);
    return resolve_experiment(config, load_tokenizer(config), 1).shape.float8.output.float8.has_value();
  };
  CHECK(with("32"));
  CHECK_THROWS_WITH(with("24"),
                    Catch::Contains("processes the 64 tokens of a step 24 at a time, which is not a multiple "
                                    "of 16 (24/16 = 1.5): set model.loss_chunk_tokens to a multiple"));
  // A chunk with more tokens than a step, which is then one chunk, but fewer than a validation.
  const TinyTraining::Overrides validated{
      "--validation.enable",  "true", "--validation.dataset_path",     tiny.text_path(),
      "--validation.seq_len", "32",   "--validation.local_batch_size", "4"};
  CHECK(with("72"));
  CHECK_THROWS_WITH(with("72", validated),
                    Catch::Contains("processes the 128 tokens of validation 72 at a time, which is not a "
                                    "multiple of 16 (72/16 = 4.5)"));
  CHECK(with("48", validated));
}

TEST_CASE("vocabulary: padding is refused where the logits of all ranks are gathered") {
  TinyTraining tiny;
  auto resolve = [&](const char* disables, const char* tp, const char* pads) {
    const Config config = tiny.config(
        "run", {"--training.mixed_precision_param", "bfloat16", "--model.converters",
                "[quantize.linear.float8]", "--quantize.linear.float8.policy",
                "[{match: output, recipe: tensorwise}]", "--quantize.linear.float8.pad_vocabulary", pads,
                "--model.vocab_size", tp[0] == '2' ? "2256" : "2264", "--parallelism.tensor_parallel_degree",
                tp, "--parallelism.disable_loss_parallel", disables});
    return resolve_experiment(config, nullptr, tp[0] - '0').shape.float8.output.padded_rows;
  };
  CHECK(resolve("false", "2", "true") == 2272 / 2);
  CHECK(resolve("true", "1", "true") == 2272);
  CHECK_THROWS_WITH(resolve("true", "2", "true"),
                    Catch::Contains("pad_vocabulary pads the logits of each rank, which "
                                    "parallelism.disable_loss_parallel would gather: remove one of them"));
}

TEST_CASE("vocabulary: padding trains in every granularity") {
  const LayoutCurve odd = train_on(step_with(kOdd), {}, 2);
  for (const char* recipe : {"rowwise", "blockwise", "mxfp8"}) {
    for (const Layout& layout : {Layout{.tp = 2}, Layout{.dp_shard = 1, .tp = 4}}) {
      INFO(recipe << ", tp " << layout.tp);
      const TrainingShape padded = in_float8(step_with(kOdd), forced(recipe, true), layout.tp);
      CHECK(padded.float8.output.padded_rows == (layout.tp == 4                        ? 576
                                                 : std::string_view(recipe) == "mxfp8" ? 1152
                                                                                       : 1136));
      require_near(train_on(padded, layout, 2), odd, 2e-3);
    }
  }
}

TEST_CASE("vocabulary: the output layer in FP8 may share its weight with the embedding") {
  TrainingShape tied = step_with(kEven);
  tied.model.tied_embeddings = true;
  tied.batch = 2;
  const LayoutCurve want = train_on(tied, {}, 2);
  for (const Layout& layout : {Layout{}, Layout{.dp_shard = 2}, Layout{.tp = 2}}) {
    INFO("FSDP " << layout.dp_shard << " x TP " << layout.tp);
    const TrainingShape shape = in_float8(tied, forced(), layout.tp);
    CHECK(shape.float8.output.float8.has_value());
    const LayoutCurve got = train_on(shape, layout, 2);
    require_near(got, want, 2e-3);
    CHECK(got.loss[0] != want.loss[0]);
  }
}
