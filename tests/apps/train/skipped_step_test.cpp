#include "apps/train/skipped_step.h"

#include <bit>
#include <cmath>
#include <limits>

#include "core/ops/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
using Catch::StartsWith;

namespace {

constexpr int32_t kPoisoned = 95;  // the last row of the embedding: NaN

struct Run {
  int ranks = 1;
  int64_t micro_batches = 1;
  int stages = 1;  ///< of a pipeline: all ranks see the same tokens
  /// Whether the rank's micro-batch (from 0) holds the token whose embedding is NaN.
  bool (*poisoned)(int rank, int64_t micro_batch) = [](int, int64_t) { return false; };
  double loss_scale = 1;
};

std::string describe_on_rank(const Run& what, Communicator& world, Device device) {
  const TrainingShape shape = shape_on(tiny_shape(tiny_llama(), what.micro_batches, 8),
                                       {.micro_batches = what.micro_batches, .pp = what.stages});
  EngineRun run(shape,
                std::make_unique<RankGroups>(groups_over(world, Mesh({.pp = what.stages}, world.size()))),
                device);
  Fsdp& parameters = run->parameters();
  parameters.initialise(7);
  const ParameterShard& embedding = parameters.shard(0);
  if (embedding.rows.end > kPoisoned && embedding.rows.begin <= kPoisoned) {
    Tensor row =
        embedding.master.slice(kPoisoned - embedding.rows.begin, kPoisoned - embedding.rows.begin + 1);
    std::vector<float> nan(static_cast<size_t>(row.numel()), std::numeric_limits<float>::quiet_NaN());
    cast(run.stream(), view_of(nan.data(), row.shape), row);
  }
  parameters.refresh_compute_copies();
  std::vector<int32_t> tokens = random_tokens(what.micro_batches * 8, kPoisoned, 3);
  for (int64_t m = 0; m < what.micro_batches; ++m) {
    if (what.poisoned(world.rank(), m)) tokens[static_cast<size_t>(m * 8 + 2)] = kPoisoned;
  }
  const std::vector<int32_t> targets = random_tokens(what.micro_batches * 8, kPoisoned, 4);
  run->train_step({.inputs = tokens, .targets = targets, .document_start = {}, .positions = {}},
                  {.learning_rate = 1e-3, .loss_scale = what.loss_scale, .valid_tokens = 1});
  return describe_skipped_step(*run, *run.ranks().control);
}

/// What all ranks say; it must be the same text.
std::string describe(const Run& what) {
  std::vector<std::string> texts(static_cast<size_t>(what.ranks));
  const Device device = devices().front();
  run_thread_ranks({.ranks = what.ranks}, [&](Communicator& world) {
    texts[static_cast<size_t>(world.rank())] = describe_on_rank(what, world, device);
  });
  for (const std::string& text : texts) REQUIRE(text == texts.front());
  return texts.front();
}

}  // namespace

TEST_CASE("a skipped step names the rank and the micro-batch whose loss was not finite first, and tensors") {
  const std::string text = describe(
      {.ranks = 2, .micro_batches = 3, .poisoned = [](int rank, int64_t m) { return rank == 1 && m >= 1; }});
  CHECK_THAT(text, StartsWith("rank 1: loss nan in micro-batch 2 of 3, gradients not finite in "));
  CHECK_THAT(text, Contains("; rank 0: loss finite in all 3 micro-batches, gradients not finite in "));
  CHECK_THAT(text, Contains(" of 15: tok_embeddings, "));
}

TEST_CASE("a skipped step of a pipeline names the stage that has the loss, and says that others have none") {
  const std::string text = describe(
      {.ranks = 2, .micro_batches = 3, .stages = 2, .poisoned = [](int, int64_t m) { return m >= 1; }});
  CHECK_THAT(text, StartsWith("rank 1: loss nan in micro-batch 2 of 3, gradients not finite in "));
  CHECK_THAT(text, Contains("; rank 0: no loss on its stages, gradients not finite in "));
}

TEST_CASE("a gradient alone may overflow, in one process too") {
  const std::string text = describe({.loss_scale = 3e38});
  CHECK_THAT(text, StartsWith("rank 0: loss finite in its only micro-batch, gradients not finite in "));
  CHECK(describe({.poisoned = [](int, int64_t) {
          return true;
        }}).starts_with("rank 0: loss nan in micro-batch 1 of 1, "));
}

TEST_CASE("no more than four ranks are named") {
  const std::string text = describe({.ranks = 6, .poisoned = [](int rank, int64_t) { return rank != 2; }});
  CHECK_THAT(text, StartsWith("rank 0: loss nan"));
  CHECK_THAT(text, Contains("; rank 4: loss nan") && !Contains("rank 5:") && !Contains("rank 2:"));
  CHECK_THAT(text, Contains("; and 2 more ranks"));
}

TEST_CASE("where nothing but the norm is not finite, that is said") {
  CHECK(describe({.ranks = 2}) ==
        "losses and gradients are finite on all ranks, but the sum of their squares is not");
}

namespace {

constexpr int32_t kPoisonedRow = 319;  // the last of the embedding

/// One FP8 step of two ranks that share every parameter, or every product; something not finite is put into
/// rank 1 alone.
struct Float8Run {
  Float8Config config;
  int tp = 1;          ///< 2: they share products, else parameters
  int good_steps = 0;  ///< before it
  float value = std::numeric_limits<float>::infinity();
  bool into_weight =
      false;  ///< of its shard of a weight, else into the row of the embedding that it alone reads
};

struct Float8Outcome {
  std::string text;
  bool skipped = false;
  int skipped_before = 0;               ///< of the good steps
  std::vector<uint32_t> before, after;  ///< bits of masters and moments
  int64_t remembered = 0;               ///< steps in the amax histories
};

Float8Outcome skip_on_rank(const Float8Run& what, Communicator& world) {
  TrainingShape whole = float8_step();
  whole.batch = 1;
  const TrainingShape shape = in_float8(whole, what.config, what.tp);
  EngineRun run(shape,
                std::make_unique<RankGroups>(
                    groups_over(world, Mesh({.dp_replicate = 1, .dp_shard = 2 / what.tp, .tp = what.tp}, 2))),
                {DeviceType::cpu, 0});
  Fsdp& parameters = run->parameters();
  parameters.initialise(7);
  auto poison = [&](const ParameterShard& shard, int64_t row) {
    if (row < shard.rows.begin || row >= shard.rows.end) return;
    shard.master.as<float>()[(row - shard.rows.begin) * shard.master.shape[1]] = what.value;
  };
  std::vector<int32_t> tokens = random_tokens(32, kPoisonedRow, 3);
  const std::vector<int32_t> targets = random_tokens(32, kPoisonedRow, 4);
  auto step = [&](int64_t number) {
    return run->train_step({.inputs = tokens, .targets = targets, .document_start = {}, .positions = {}},
                           {.learning_rate = 1e-3, .optimizer_step = number, .valid_tokens = 64 / what.tp});
  };
  Float8Outcome out;
  for (int good = 1; good <= what.good_steps; ++good) out.skipped_before += step(good).skipped;
  if (const ParameterShard& embedding = parameters.shard(0); !what.into_weight) {
    const int64_t rows = embedding.slice[0];  // of a tensor-parallel rank
    if (parameters.coordinates().tp_rank == kPoisonedRow / rows) poison(embedding, kPoisonedRow % rows);
  }
  if (what.into_weight && world.rank() == 1) {
    const ParameterShard& weight = parameters.shard(parameters.float8()->specs()[2].parameter);
    poison(weight, weight.rows.begin);
  }
  parameters.refresh_compute_copies();
  // Tensor-parallel ranks have the same tokens, of which rank 1 works on the second half.
  if (what.tp == 2 || world.rank() == 1) tokens[20] = kPoisonedRow;
  auto state = [&] {
    std::vector<uint32_t> all;
    for (int p = 0; p < static_cast<int>(parameters.specs().size()); ++p) {
      const ParameterShard& s = parameters.shard(p);
      for (const Tensor& t : {s.master, s.moments[Moment::exp_avg], s.moments[Moment::exp_avg_sq]}) {
        const std::vector<float> values = run.values(t);
        for (float value : values) all.push_back(std::bit_cast<uint32_t>(value));
      }
    }
    return all;
  };
  out.before = state();
  out.skipped = step(what.good_steps + 1).skipped;
  out.after = state();
  if (fp8::AmaxHistory* history = run->float8()->history())
    out.remembered = history->steps + parameters.float8()->history()->steps;
  out.text = describe_skipped_step(*run, *run.ranks().control);
  return out;
}

std::string skip_float8(const Float8Run& what) {
  std::vector<Float8Outcome> ranks(2);
  run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    ranks[static_cast<size_t>(world.rank())] = skip_on_rank(what, world);
  });
  for (const Float8Outcome& rank : ranks) {
    CHECK(rank.skipped_before == 0);
    CHECK(rank.skipped);
    CHECK((rank.before == rank.after));
    CHECK(rank.remembered == (what.config.recipe_name == "delayed" ? 2 * what.good_steps : 0));
    CHECK(rank.text == ranks[0].text);
  }
  return ranks[0].text;
}

}  // namespace

TEST_CASE("an infinity or a NaN in the FP8 input of one rank skips the step of all, and is named") {
  for (const std::string& recipe : all_recipes()) {
    for (const float value :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      for (const int tp : {1, 2}) {
        for (const bool gathers : {false, true}) {
          if (gathers && tp == 1) continue;
          INFO(recipe << ", " << value << ", TP " << tp << (gathers ? ", gathered as codes" : ""));
          const Float8Config config{.recipe_name = recipe, .enable_tp_float8_all_gather = gathers};
          const std::string text = skip_float8({.config = config, .tp = tp, .value = value});
          CHECK_THAT(text, Contains("rank 1: loss ") && Contains(", FP8 operands not finite: ") &&
                               Contains("x of layers.0.attention.wqkv"));
          // Sharded ranks multiply activations of their own: the other one's are finite.
          if (tp == 1) CHECK_THAT(text, StartsWith("rank 1: ") && !Contains("rank 0:"));
        }
      }
    }
  }
}

// The weight is finite in bf16, but not as the code that it is rounded to under its power-of-two scale, or
// not once it is multiplied. One rank alone must not stop there.
TEST_CASE(
    "a weight at the end of bf16's range skips the step of all ranks, in recipes with block scales too") {
  for (const char* recipe : {"blockwise", "mxfp8"}) {
    for (const float value : {3e38f, 3.3e38f}) {
      INFO(recipe << ", " << value);
      CHECK_THAT(skip_float8({.config = {.recipe_name = recipe}, .value = value, .into_weight = true}),
                 Contains("rank 1: loss ") && Contains("not finite") && Contains("layers.0.feed_forward.w2"));
    }
  }
}

TEST_CASE("an infinity in an FP8 input is named although its scale is an earlier step's") {
  Float8Config config;
  config.recipe_name = "delayed";
  config.amax_history_length = 1;
  for (const bool into_weight : {false, true}) {
    INFO("into the " << (into_weight ? "weight" : "input"));
    const std::string text = skip_float8({.config = config, .good_steps = 2, .into_weight = into_weight});
    CHECK_THAT(text, Contains("rank 1: loss ") && Contains(", FP8 operands not finite: ") &&
                         Contains(into_weight ? "w of layers.0.feed_forward.w13 (in its own shard)"
                                              : "x of layers.0.attention.wqkv"));
  }
}

TEST_CASE(
    "an infinity in one rank's shard of an FP8 weight skips the step of all and names the weight and the "
    "rank") {
  for (const bool gathers : {false, true}) {
    const float value = gathers ? std::numeric_limits<float>::max()  // an infinity in bf16
                                : std::numeric_limits<float>::infinity();
    INFO(gathers);
    Float8Config config;
    config.recipe_name = "delayed";
    config.enable_fsdp_float8_all_gather = gathers;
    const std::string text = skip_float8({.config = config, .value = value, .into_weight = true});
    CHECK_THAT(text,
               Contains("rank 1: loss ") && Contains("w of layers.0.feed_forward.w13 (in its own shard)"));
    CHECK(text.find("(in its own shard)") == text.rfind("(in its own shard)"));
  }
}
