#include "apps/config/first_config.h"

#include <fmt/core.h>

#include <sstream>

#include "apps/config/config.h"
#include "core/metrics/step_line.h"
#include "tests/support/catch.h"
#include "tests/support/config_of_text.h"
#include "tests/support/message_of.h"

using namespace ottava;
using Catch::Matchers::Contains;

TEST_CASE("a first configuration fits the time and the text") {
  for (double rate : {1e10, 3e11, 1e13}) {
    for (int64_t bytes : {int64_t{100'000}, int64_t{10'000'000}, int64_t{3'000'000'000}}) {
      for (double minutes : {2.0, 60.0}) {
        INFO(rate << " FLOP/s, " << bytes << " bytes, " << minutes << " minutes");
        const FirstConfig c =
            choose_first_config({.text_bytes = bytes, .flops_per_second = rate, .minutes = minutes});
        CHECK(c.parameters == parameter_count(c.model));
        CHECK(c.model.heads * c.model.head_dim == c.model.dim);
        CHECK(c.global_batch % c.local_batch == 0);
        CHECK(c.tokens == static_cast<double>(c.steps * c.global_batch * c.sequence));
        CHECK(c.warmup < c.steps);
        // No longer than asked for and no more epochs than help, unless the smallest run is that.
        const bool is_least = c.steps == 20;
        CHECK((is_least || c.minutes < 1.1 * minutes));
        CHECK((is_least || c.epochs < 4.1));
        CHECK_NOTHROW(validate(c.model));
      }
    }
  }
}

TEST_CASE("more time and more text make a larger model") {
  auto parameters = [](int64_t bytes, double minutes) {
    return choose_first_config(
               {.text_bytes = bytes, .flops_per_second = 3e11, .minutes = minutes, .vocabulary = 4096})
        .parameters;
  };
  CHECK(parameters(1'000'000'000, 600) > parameters(1'000'000'000, 60));
  CHECK(parameters(1'000'000'000, 60) > parameters(1'000'000, 60));
  CHECK_THAT(
      ottava::test::message_of([] { choose_first_config({.text_bytes = 100, .flops_per_second = 1e12}); }),
      Contains("the text has 100 bytes, expected at least 20000"));
  CHECK_THAT(ottava::test::message_of([] {
               choose_first_config({.text_bytes = 1 << 20, .flops_per_second = 1e12, .minutes = 0});
             }),
             Contains("--minutes is 0, expected more than 0"));
}

TEST_CASE("the file of a first configuration loads as what was chosen") {
  const FirstConfig c = choose_first_config({.text_bytes = 5'000'000, .flops_per_second = 2e11});
  const std::string yaml = to_yaml(c, {.text = "it's.txt", .tokenizer = "a b/tokenizer", .output = "out"});
  const Config loaded = ottava::test::config_of_text(yaml, "ottava.yaml");
  CHECK(loaded.model.dim == c.model.dim);
  CHECK(loaded.model.n_layers == c.model.layers);
  CHECK(loaded.model.hf_assets_path == "a b/tokenizer");
  CHECK(loaded.training.dataset_path == std::vector<std::string>{"it's.txt"});
  CHECK(loaded.training.steps == c.steps);
  CHECK(loaded.training.global_batch_size == c.global_batch);
  CHECK(loaded.optimizer.lr == Approx(c.learning_rate));
  CHECK(loaded.checkpoint.enable);
  CHECK(loaded.training.text_key == "text");
  const FirstConfig least =
      choose_first_config({.text_bytes = 20'000, .flops_per_second = 1e9, .minutes = 0.1});
  CHECK_THAT(to_yaml(least, {.text = "t", .tokenizer = "t", .output = "out"}),
             Contains(fmt::format("parameters, {} tokens (",
                                  with_commas(least.steps * least.global_batch * least.sequence))));
  std::istringstream lines(yaml);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    if (line.starts_with("  ")) CHECK(line.find(" # ") != std::string::npos);  // says what the key is for
  }
  const std::string keyed =
      to_yaml(c, {.text = "a.jsonl", .tokenizer = "t", .output = "out", .text_key = "the body"});
  CHECK(ottava::test::config_of_text(keyed, "ottava.yaml").training.text_key == "the body");
}

TEST_CASE("an estimate of one minute is one minute") {
  CHECK(minutes_text(0.9) == "less than a minute");
  CHECK(minutes_text(1.4) == "about 1 minute");
  CHECK(minutes_text(1.6) == "about 2 minutes");
}
