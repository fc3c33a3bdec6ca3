#include "apps/step/training_state.h"

#include "tests/support/catch.h"
#include "tests/support/message_of.h"

// training_state.json: what a run carries besides tensors.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

TrainingState full() {
  TrainingState s;
  s.step = 7;
  s.schedule_step = 8;
  s.optimizer_step = 6;
  s.data_position = 56;
  s.tokens_seen = 1792;
  s.skipped_steps = 1;
  s.consecutive_skips = 1;
  s.loss_scale = {.scale = 1.5, .good_steps = 2};
  s.skipped_spikes = 3;
  s.spikes = {.known = 9, .values = {3.5F, 3.25F, 1, 0.1F}};
  s.moments_begun = {{"layers.0.feed_forward.w2", 4}, {"output", 6}};
  s.data_fingerprint = 0xfedcba9876543210;
  s.data_versions = {{"books", "whole 0123456789abcdef"}, {"web", "times 0"}};
  s.mixture = "0: web 49152, books 16384";
  s.branch = "load_step 4";
  s.sequences_per_step = 8;
  s.threads = 12;
  s.computes_with = "avx2, oneDNN";
  return s;
}

/// With `from` exchanged for `to` in what is written.
std::string refusal(std::string_view from, std::string_view to) {
  std::string text = to_json(full());
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  INFO(text);
  return message_of([&] { parse_training_state(text, "step-7/training_state.json"); });
}

}  // namespace

TEST_CASE("the state of a run is read as it was written") {
  CHECK(parse_training_state(to_json(full()), "x") == full());
  TrainingState plain = full();
  plain.loss_scale.reset();
  plain.skipped_spikes = 0;
  plain.spikes = {};
  plain.moments_begun.clear();
  plain.mixture.clear();
  plain.data_versions.clear();
  plain.branch.clear();
  plain.threads = 0;
  plain.computes_with.clear();
  CHECK(to_json(plain).find("spike") == std::string::npos);
  CHECK(to_json(plain).find("moments") == std::string::npos);
  CHECK(parse_training_state(to_json(plain), "x") == plain);
}

TEST_CASE("a state that no run can have is refused with the file and the key") {
  const std::string text = to_json(full());
  const size_t begin = text.find('[', text.find("\"spike_window\""));
  const std::string window = text.substr(begin, text.find(']', begin) + 1 - begin),
                    place = "step-7/training_state.json: ";
  const auto of_window = [&](std::string_view values) { return refusal(window, values); };
  CHECK_THAT(of_window("[]"),
             Contains(place + "spike_window has 0 values, expected losses and as many norms"));
  CHECK_THAT(of_window("[3.5, 3.25, 1.0]"), Contains(place + "spike_window has 3 values"));
  CHECK_THAT(of_window("[3.5, 1e300]"),
             Contains("spike_window has 2 values") && Contains("all of them finite"));
  CHECK_THAT(of_window("[3.5, \"x\"]"), Contains(place + "spike_window"));
  CHECK_THAT(of_window("7"), Contains(place + "spike_window"));
  CHECK_THAT(refusal("\"spike_window_steps\": 9", "\"spike_window_steps\": -1"),
             Contains(place + "spike_window_steps is -1, expected a count"));
  for (const char* begun : {"0", "7", "-1"}) {
    CHECK_THAT(refusal("\"output\": 6", "\"output\": " + std::string(begun)),
               Contains(place + "moments_begun is " + begun + " for 'output', expected 1 to 6"));
  }
  CHECK_THAT(refusal("\"output\": 6", "\"output\": true"), Contains(place + "moments_begun"));
  CHECK_THAT(refusal("\"skipped_spikes\": 3,", ""), Contains("skipped_spikes"));
  CHECK_THAT(refusal("\"step\": 7", "\"step\": -7"), Contains(place + "step is -7, expected a count"));
  CHECK_THAT(refusal("\"data_position\": 56,", ""), Contains("data_position"));
  // Steps to come are added to each; close to the end of 64 bits the sum is negative, and no sample is found.
  const std::string far = "9223372036854775800";
  CHECK_THAT(
      refusal("\"data_position\": 56", "\"data_position\": " + far),
      Contains(place + "data_position is " + far + ", expected a count of at most 4611686018427387904"));
  CHECK_THAT(refusal("fedcba9876543210", "fedcba987654321g"),
             Contains("data_fingerprint is 'fedcba987654321g', expected 16 hexadecimal digits"));
  CHECK_THAT(refusal("\"times 0\"", "7"), Contains(place + "data_versions"));
  CHECK_THAT(refusal("\"0: web 49152, books 16384\"", "3"), Contains(place + "mixture"));
}
