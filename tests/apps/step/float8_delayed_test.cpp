#include <bit>
#include <filesystem>
#include <limits>

#include "apps/step/non_finite.h"
#include "fp8/amax_history.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/tiny_training.h"

// Recipe `delayed` is the one with a state: what fills it, what must not touch it, and how it travels through
// a checkpoint.

using namespace ottava;
using namespace ottava::test;
using Overrides = TinyTraining::Overrides;
namespace fs = std::filesystem;

namespace {

Overrides recipe(const char* name) {
  return {
      "--training.mixed_precision_param",     "bfloat16", "--model.converters", "[quantize.linear.float8]",
      "--quantize.linear.float8.recipe_name", name,       "--training.steps",   "6"};
}
const Overrides kHistory{"--quantize.linear.float8.amax_history_length", "3"};
const Overrides kSaving = words(
    "--checkpoint.enable true --checkpoint.interval 2 --checkpoint.keep_latest_k 0 "
    "--checkpoint.last_save_model_only false");

struct History {
  int64_t steps = 0;
  std::vector<uint32_t> operands, weights;
  bool operator==(const History&) const = default;
};
History history_of(Trainer& trainer) {
  auto words = [](const fp8::AmaxHistory& h) {
    return std::vector<uint32_t>(h.rows.as<uint32_t>(), h.rows.as<uint32_t>() + h.rows.numel());
  };
  const fp8::AmaxHistory &operands = *trainer.engine().float8()->history(),
                         &weights = *trainer.engine().parameters().float8()->history();
  CHECK(operands.steps == weights.steps);
  return {operands.steps, words(operands), words(weights)};
}

struct Ended {
  Everything everything;
  History history;
  bool operator==(const Ended&) const = default;
};
/// `from`: the step of the checkpoint with which the run must begin.
Ended finish(const TinyTraining& tiny, const std::string& run, const Overrides& overrides, int64_t from = 0) {
  TinyTraining::Run r = tiny.start(run, overrides);
  CHECK(r->state().step == from);
  CHECK(r->run() == Trainer::End::completed);
  return {everything_of(*r.trainer), history_of(*r.trainer)};
}

}  // namespace

TEST_CASE("delayed: the history fills, counts steps, and decides the scales once it is full") {
  TinyTraining tiny;
  const Ended six = finish(tiny, "six", recipe("delayed") + kHistory);
  CHECK(six.history.steps == 6);
  CHECK(std::count(six.history.operands.begin(), six.history.operands.end(), 0u) == 0);
  CHECK(std::count(six.history.weights.begin(), six.history.weights.end(), 0u) == 0);
  // While it fills, scales are current: what is longer than the run is tensorwise.
  const Ended filling = finish(
      tiny, "filling", recipe("delayed") + Overrides{"--quantize.linear.float8.amax_history_length", "7"});
  TinyTraining::Run tensorwise = tiny.start("tensorwise", recipe("tensorwise"));
  tensorwise->run();
  CHECK((filling.everything == everything_of(*tensorwise.trainer)));
  CHECK_FALSE((six.everything == filling.everything));
  CHECK_FALSE((
      finish(tiny, "margin", recipe("delayed") + kHistory + Overrides{"--quantize.linear.float8.margin", "1"})
          .everything == six.everything));
}

TEST_CASE("delayed: neither validation nor recomputation touches the history; micro-batches share one row") {
  TinyTraining tiny;
  const Overrides base = recipe("delayed") + kHistory;
  const Ended expected = finish(tiny, "base", base);
  CHECK((finish(tiny, "validated",
                base + Overrides{"--validation.enable", "true", "--validation.dataset_path", tiny.text_path(),
                                 "--validation.freq", "1", "--validation.steps", "2", "--validation.seq_len",
                                 "32", "--validation.local_batch_size", "1"}) == expected));
  CHECK(logged(tiny / "validated", "validation_metrics/loss").size() == 6);
  CHECK((finish(tiny, "full", base + Overrides{"--activation_checkpoint.mode", "full"}) == expected));
  CHECK((finish(tiny, "op",
                base + Overrides{"--activation_checkpoint.mode", "selective",
                                 "--activation_checkpoint.selective_ac_option", "op"}) == expected));
  CHECK(finish(tiny, "accumulated", base + Overrides{"--training.global_batch_size", "8"}).history.steps ==
        6);
}

TEST_CASE("delayed: a run that is resumed is bitwise the uninterrupted one, its history too") {
  TinyTraining tiny;
  const Overrides base = recipe("delayed") + kHistory;
  const Ended expected = finish(tiny, "whole", base);
  CHECK((finish(tiny, "resumed", base + kSaving) == expected));
  for (int saved : {4, 2}) {  // full, and still filling
    INFO("from step " << saved);
    for (int later = saved + 2; later <= 6; later += 2)
      fs::remove_all(tiny / ("resumed/checkpoint/step-" + std::to_string(later)));
    CHECK((finish(tiny, "resumed", base + kSaving, saved) == expected));
  }
  SECTION("not by another recipe, and not with another length") {
    CHECK_THAT(message_of([&] { tiny.start("resumed", recipe("tensorwise") + kSaving); }),
               Catch::Contains("belongs to recipe delayed, which this run does not use") &&
                   Catch::Contains("checkpoint.exclude_from_loading"));
    CHECK_THAT(
        message_of([&] { tiny.start("resumed", recipe("delayed") + kSaving); }),
        Catch::Contains(
            "has 3 steps of amaxes, but quantize.linear.float8.amax_history_length is 1024: set it to 3"));
    CHECK_THAT(message_of([&] {
                 tiny.start("resumed", base + kSaving +
                                           Overrides{"--quantize.linear.float8.filter_fqns",
                                                     "[layers.0.feed_forward.w2]"});
               }),
               Catch::Contains("has an amax history of layers.0.feed_forward.w2 x where this run has "
                               "layers.1.attention.wqkv x"));
  }
  SECTION("a new history begins where it is excluded") {
    const Overrides excluded{"--checkpoint.exclude_from_loading", "float8_history"};
    CHECK(tiny.start("resumed", recipe("tensorwise") + kSaving + excluded)->state().step == 6);
    TinyTraining::Run fresh = tiny.start("resumed", base + kSaving + excluded);
    CHECK(history_of(*fresh.trainer).steps == 0);
    CHECK(history_of(*tiny.start("resumed", base + kSaving).trainer) == expected.history);
  }
}

TEST_CASE("delayed: the history of gradients follows the loss scale") {
  TinyTraining tiny;
  const Overrides base = recipe("delayed") + kHistory + kSaving;
  const Ended expected = finish(tiny, "run", base);
  for (int saved : {4, 2}) {  // full, and still filling
    for (int later = saved + 2; later <= 6; later += 2)
      fs::remove_all(tiny / ("run/checkpoint/step-" + std::to_string(later)));
    const Ended scaled = finish(tiny, "run", base + Overrides{"--training.loss_scale", "1024"}, saved);
    CHECK((scaled.everything == expected.everything));  // times a power of two, and no bit is lost
    for (size_t i = 0; i < expected.history.operands.size(); ++i) {
      const auto was = std::bit_cast<float>(expected.history.operands[i]),
                 is = std::bit_cast<float>(scaled.history.operands[i]);
      CHECK(is == (i % 2 == 0 ? was : was * 1024));
    }
    CHECK(scaled.history.weights == expected.history.weights);
  }
}

TEST_CASE(
    "delayed: a skipped step leaves the history, and an infinity is found although its scale is an old one") {
  TinyTraining tiny;
  for (int steps : {1, 4}) {  // filling, and full
    INFO("after " << steps << " steps");
    TinyTraining::Run run = tiny.start("skips", recipe("delayed") + kHistory);
    for (int i = 0; i < steps; ++i) CHECK_FALSE(run->step(nullptr).skipped);
    const History before = history_of(*run.trainer);
    Fsdp& parameters = run->engine().parameters();
    int w2 = 0;
    while (parameters.specs()[static_cast<size_t>(w2)].name != "layers.0.feed_forward.w2") ++w2;
    float& weight = parameters.shard(w2).master.as<float>()[5];
    const float good = weight;
    weight = std::numeric_limits<float>::infinity();  // saturates: every gradient stays finite
    parameters.refresh_compute_copies();
    CHECK(run->step(nullptr).skipped);
    CHECK_THAT(non_finite_operands(run->engine()), Catch::Contains("w of layers.0.feed_forward.w2"));
    CHECK((history_of(*run.trainer) == before));
    weight = good;
    parameters.refresh_compute_copies();
    CHECK_FALSE(run->step(nullptr).skipped);
    CHECK(history_of(*run.trainer).steps == steps + 1);
  }
}
