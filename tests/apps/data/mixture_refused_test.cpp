#include <fstream>

#include "apps/data/training_data.h"
#include "tests/apps/data/mixed_training.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

// Mixtures that mean nothing, and those of which a source would be seen too often.

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
using Overrides = TinyTraining::Overrides;

TEST_CASE("a source that would be seen too often is refused before training") {
  MixedTraining mixed;
  CHECK_THAT(message_of([&] {
               mixed.start("often", mixed.of("weight: 1", "weight: 1", "weight: 8, max_epochs: 2",
                                             {"--training.steps", "200"}));
             }),
             Contains("[training.mixture] notes would be seen ") && Contains(" times by step 200") &&
                 Contains("its max_epochs is 2"));
  // Above 4 times it is warned of, unless a limit says that it is meant.
  const auto warned_of = [&](const std::string& notes) {
    const CapturedOutput captured;
    mixed.start("warned", mixed.of("weight: 1", "weight: 1", notes, {"--training.steps", "200"}));
    return captured.text();
  };
  CHECK_THAT(warned_of("weight: 8"),
             Contains("WARNING") && Contains("training.mixture: notes would be seen ") &&
                 Contains("; more than 4 passes begin to cost quality") && !Contains("mixture: web"));
  CHECK_THAT(warned_of("weight: 8, max_epochs: 1000"), !Contains("times by step"));
  CHECK_THAT(warned_of("weight: 0.01"), !Contains("times by step"));
  std::ofstream(mixed / "notes.txt") << "too short";
  CHECK_THAT(message_of([&] { mixed.start("short", mixed.of("weight: 1", "weight: 1", "weight: 1")); }),
             Contains("the dataset is too small: '" + (mixed / "notes.txt")));
}

TEST_CASE("a source near its max_epochs is counted, so that what begins is not refused later") {
  MixedTraining mixed;
  const auto of = [&](const std::string& limit) {
    return mixed.of("weight: 1", "weight: 1", "weight: 8" + limit, {"--training.steps", "40"});
  };
  const TinyTraining::Run run = mixed.start("count", of(""));
  const data::MixedLoader& data = run.trainer->data().loader();
  const double epochs =
      static_cast<double>(data.mixture().counts(40 * run.trainer->experiment().global_batch)[2]) /
      static_cast<double>(data.sources()[2].loader->count_samples());
  const auto limit = [&](double share) { return fmt::format(", max_epochs: {}", share * epochs); };
  CHECK_THAT(message_of([&] { mixed.start("over", of(limit(0.98))); }),
             Contains(fmt::format("notes would be seen {:.1f} times by step 40", epochs)));
  CHECK(mixed.start("under", of(limit(1.02)))->run() == Trainer::End::completed);
}

TEST_CASE("how often a source is seen depends on the batches that there were") {
  MixedTraining mixed;
  const auto of = [&](const std::string& limit, const char* steps, const char* batch) {
    return mixed.of("weight: 1", "weight: 1", "weight: 8" + limit,
                    {"--training.steps", steps, "--training.local_batch_size", batch, "--checkpoint.enable",
                     "true", "--checkpoint.last_save_model_only", "false"});
  };
  TinyTraining::Run run = mixed.start("run", of("", "10", "1"));
  CHECK(run->run() == Trainer::End::completed);
  data::MixedLoader& data = run->data().loader();
  const auto windows = static_cast<double>(data.sources()[2].loader->count_samples());
  const auto epochs_after = [&](int64_t samples) {
    return static_cast<double>(data.mixture().counts(samples)[2]) / windows;
  };
  const double limit = epochs_after(10 + 10 * 4) * 1.01;
  CHECK(epochs_after(20 * 4) > limit);
  CHECK(mixed.start("run", of(fmt::format(", max_epochs: {}", limit), "20", "4"))->run() ==
        Trainer::End::completed);
  CHECK_THAT(message_of([&] { mixed.start("run", of(fmt::format(", max_epochs: {}", limit), "30", "1")); }),
             Contains(" times by step 30") && Contains("its max_epochs is "));
}

TEST_CASE("mixtures that mean nothing are refused with the key") {
  MixedTraining mixed;
  auto message = [&](const Overrides& overrides) {
    return message_of([&] { mixed.config("x", overrides); });
  };
  CHECK_THAT(
      message(mixed.of("weight: 1", "weight: 1", "repeat: 2")),
      Contains("training.mixture: some sources have a weight and others a repeat") && Contains("1 problem"));
  CHECK_THAT(message(mixed.of("weight: 1", "weight: 1", "text_key: t")),
             Contains("2 of 3 sources have a weight") && Contains("1 problem"));
  CHECK_THAT(message(mixed.of("weight: -1", "weight: 1", "weight: 1")),
             Contains("weight: expected a number >= 0"));
  CHECK_THAT(message(mixed.of("weight: 0", "weight: 0", "weight: 0")), Contains("all weights are 0"));
  CHECK_THAT(message(mixed.of("weight: 1", "weight: 1", "weight: 0.000001")), Contains("less than 1/65536"));
  CHECK_THAT(message(mixed.of("weight: 1", "weight: 1", "weight: 0")),
             Contains("notes has weight 0 in every stage"));
  auto stages = [&](const std::string& text) {
    return message(mixed.of("weight: 1", "weight: 1", "weight: 1", {"--training.mixture_stages", text}));
  };
  CHECK_THAT(stages("[{from_step: 5, weights: [1, 2]}]"),
             Contains("the stage from step 5 has 2 weights, expected 3"));
  CHECK_THAT(stages("[{from_step: 5, weights: [1, 2, x]}]"),
             Contains("expected a number, got the string \"x\""));
  CHECK_THAT(stages("[{from_step: 5, weights: [1, 2, 3]}, {from_step: 5, weights: [1, 1, 1]}]"),
             Contains("the stage from step 5 is listed after the one from step 5"));
  CHECK_THAT(message({"--training.mixture", "[{name: a b, path: x, weight: 1}]"}),
             Contains("the name \"a b\" is not valid") && Contains("training.dataset_path is set as well"));
  CHECK_THAT(message({"--training.mixture", "[{name: web, path: [], weight: 1}]"}),
             Contains("training.mixture: web has no path"));
  CHECK_THAT(message({"--validation.enable", "true", "--validation.datasets", "[{name: own, path: []}]"}),
             Contains("validation.datasets: own has no path"));
  CHECK_THAT(message({"--training.mixture_stages", "[{from_step: 5, weights: [1]}]"}),
             Contains("stages change the weights of training.mixture, which is not set"));
}

TEST_CASE("what is wrong with weights is said with the file and the line") {
  MixedTraining mixed;
  const std::string file = mixed / "job.yaml";
  std::ofstream(file) << "training:\n  mixture:\n    - {name: web, path: x, weight: 1}\n"
                      << "    - {name: books, path: y, weight: -2}\n";
  CHECK_THAT(message_of([&] { load_config(file, {}); }),
             Contains(file + ":4:38: training.mixture[1].weight: expected a number >= 0"));
  std::ofstream(file) << "training:\n  mixture:\n    - {name: web, path: x, weight: 0}\n"
                      << "    - {name: books, path: y, weight: 0}\n";
  CHECK_THAT(message_of([&] { load_config(file, {}); }),
             Contains(file + ":3:5: training.mixture: ") && Contains("all weights are 0"));
  std::ofstream(mixed / "notes.txt").close();
  CHECK_THAT(message_of([&] { mixed.start("empty", mixed.of("weight: 1", "weight: 1", "weight: 1")); }),
             Contains("the dataset is empty: 1 file in '" + (mixed / "notes.txt") + "', all of them empty"));
}
