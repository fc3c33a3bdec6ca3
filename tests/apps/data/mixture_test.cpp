#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/commands/bench_data_command.h"
#include "apps/data/training_data.h"
#include "parallel/sharding/rank_groups.h"
#include "tests/apps/data/mixed_training.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/tiny_training.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
using Overrides = TinyTraining::Overrides;

TEST_CASE("a mixture with stages goes on from any step bit for bit") {
  MixedTraining mixed;
  const Overrides all = mixed.of("weight: 3", "weight: 1", "weight: 0",
                                 {"--training.mixture_stages", "[{from_step: 4, weights: [1, 1, 2]}]",
                                  "--lr_scheduler.total_steps", "8", "--checkpoint.enable", "true"});
  auto steps = [&](int count) {
    Overrides out = all;
    out.insert(out.end(), {"--training.steps", std::to_string(count)});
    return out;
  };
  TinyTraining::Run straight = mixed.start("straight", steps(8));
  straight->run();
  const Everything whole = everything_of(*straight.trainer);
  CHECK_THAT(whole.state.mixture,
             Contains("0: web 49152, books 16384; 6: web 16384, books 16384, notes 32768"));
  for (int stop : {1, 3, 4, 6}) {
    INFO("stopped after step " << stop);
    const std::string run = "stopped" + std::to_string(stop);
    mixed.start(run, steps(stop))->run();
    TinyTraining::Run resumed = mixed.start(run, steps(8));
    CHECK(resumed->state().step == stop);
    resumed->run();
    CHECK(everything_of(*resumed.trainer) == whole);
  }

  // What has been read may not become something else; what has not may.
  Overrides other = mixed.of("weight: 2", "weight: 1", "weight: 1", {"--checkpoint.enable", "true"});
  CHECK_THAT(
      message_of([&] { mixed.start("stopped3", other); }),
      Contains(
          "the checkpoint was trained with other weights than those of this configuration: 0: web 49152"));
  Overrides later = mixed.of("weight: 3", "weight: 1", "weight: 0",
                             {"--training.mixture_stages",
                              "[{from_step: 4, weights: [1, 1, 2]}, {from_step: 10, weights: [0, 0, 1]}]",
                              "--training.steps", "12", "--checkpoint.enable", "true"});
  mixed.start("stopped3", later)->run();
}

TEST_CASE("every layout reads the same tokens of the same sources") {
  MixedTraining mixed;
  const Overrides overrides = mixed.of("weight: 3", "weight: 2", "weight: 1");
  const TinyTraining::Run run = mixed.start("layouts", overrides);
  const Experiment& experiment = run.trainer->experiment();
  struct Step {
    std::vector<int32_t> tokens, sources;
    bool operator==(const Step&) const = default;
  };
  // A step of 8 samples from all data ranks, put together by the number of the sample.
  auto step_of = [&](int64_t batch, int64_t micro_batches, int ranks, int64_t position) {
    Step step{std::vector<int32_t>(8 * 32), std::vector<int32_t>(8)};
    for (int rank = 0; rank < ranks; ++rank) {
      RankGroups solo = solo_rank_groups();
      BatchSource source(
          open_training_data(experiment, solo),
          {.batch = batch, .micro_batches = micro_batches, .data_rank = rank, .data_size = ranks});
      const HostTokens& tokens = source.read(position);
      for (int64_t m = 0; m < micro_batches; ++m) {
        for (int64_t b = 0; b < batch; ++b) {
          const int64_t here = m * batch + b, sample = (m * ranks + rank) * batch + b;
          std::copy_n(tokens.inputs.begin() + here * 32, 32, step.tokens.begin() + sample * 32);
          step.sources[static_cast<size_t>(sample)] = source.sources()[static_cast<size_t>(here)];
        }
      }
    }
    return step;
  };
  // Ranks that share sequences hold their chunks, in two halves each; all of them together hold the step.
  auto shared_step = [&](int ranks, int64_t position) {
    Step step{std::vector<int32_t>(8 * 32), std::vector<int32_t>(8)};
    const int64_t chunk = 32 / (2 * ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      RankGroups solo = solo_rank_groups();
      BatchSource source(open_training_data(experiment, solo),
                         {.batch = 4, .micro_batches = 2, .context_rank = rank, .context_size = ranks});
      const HostTokens& tokens = source.read(position);
      auto from = tokens.inputs.begin();
      auto at = tokens.positions.begin();
      for (int64_t m = 0; m < 2; ++m) {
        for (int64_t k : {int64_t{rank}, int64_t{2 * ranks - 1 - rank}}) {
          for (int64_t b = 0; b < 4; ++b, from += chunk, at += chunk) {
            CHECK(*at == k * chunk);
            std::copy_n(from, chunk, step.tokens.begin() + (m * 4 + b) * 32 + k * chunk);
          }
        }
      }
      std::ranges::copy(source.sources(), step.sources.begin());
    }
    return step;
  };
  for (int64_t position : {0, 8, 800}) {
    const Step alone = step_of(8, 1, 1, position);
    CHECK(shared_step(2, position) == alone);
    CHECK(shared_step(4, position) == alone);
    CHECK(step_of(2, 4, 1, position) == alone);
    CHECK(step_of(2, 1, 4, position) == alone);
    CHECK(step_of(1, 2, 4, position) == alone);
  }
  CHECK(step_of(8, 1, 1, 0).tokens != step_of(8, 1, 1, 8).tokens);
}

TEST_CASE("tokens, share, epochs and loss of each source are logged") {
  MixedTraining mixed;
  mixed
      .start("logged", mixed.of("weight: 3", "weight: 2", "weight: 1", {"--training.local_batch_size", "6"}))
      ->run();
  const std::string folder = mixed / "logged";
  const std::vector<double> loss = logged(folder, "loss_metrics/global_avg_loss");
  REQUIRE(loss.size() == 8);
  for (size_t step = 0; step < 8; ++step) {
    double sum = 0;
    // Six samples in a row are 3, 2 and 1 of them, and so is each step.
    for (const auto& [name, share] :
         {std::pair{"web", 3.0}, std::pair{"books", 2.0}, std::pair{"notes", 1.0}}) {
      const std::string prefix = std::string("mixture/") + name;
      sum += share / 6 * logged(folder, prefix + "/loss").at(step);
      CHECK(logged(folder, prefix + "/tokens").at(step) == share * 32 * static_cast<double>(step + 1));
      CHECK(logged(folder, prefix + "/share").at(step) == Approx(share / 6));
    }
    CHECK(sum == Approx(loss[step]).epsilon(1e-6));
  }
  mixed
      .start("one", mixed.of("weight: 1", "weight: 0", "weight: 0",
                             {"--training.mixture_stages", "[{from_step: 100, weights: [1, 1, 1]}]"}))
      ->run();
  const std::vector<double> alone = logged(mixed / "one", "mixture/web/loss"),
                            global = logged(mixed / "one", "loss_metrics/global_avg_loss");
  REQUIRE(alone.size() == 8);
  for (size_t step = 0; step < 8; ++step) CHECK(std::abs(alone[step] / global[step] - 1) < 1e-6);
  CHECK(logged(mixed / "one", "mixture/books/loss").empty());
  // 16 windows of those that the text has.
  RankGroups solo = solo_rank_groups();
  data::MixedLoader again = open_training_data(
      mixed.start("count", mixed.of("weight: 1", "weight: 1", "weight: 1"))->experiment(), solo);
  CHECK(logged(mixed / "one", "mixture/web/epochs").back() ==
        Approx(16.0 / static_cast<double>(again.sources()[0].loader->count_samples())).epsilon(0.1));
}

TEST_CASE("a source is seen as often as its repeat says") {
  MixedTraining mixed;
  const TinyTraining::Run run = mixed.start("repeat", mixed.of("repeat: 1", "repeat: 2", "repeat: 3"));
  const auto& sources = run.trainer->data().loader().sources();
  double all = 0;
  std::vector<double> parts;
  for (size_t i = 0; i < 3; ++i) {
    parts.push_back(static_cast<double>((i + 1) * sources[i].loader->samples_per_epoch().value()));
    all += parts.back();
  }
  const std::vector<int64_t> counts =
      run.trainer->data().loader().mixture().counts(static_cast<int64_t>(all));
  for (size_t i = 0; i < 3; ++i) CHECK(std::abs(static_cast<double>(counts[i]) - parts[i]) < 2);
}

TEST_CASE("data that grew under a mixture without weights is what a resumed run names") {
  MixedTraining mixed;
  const Overrides repeats = mixed.of("repeat: 1", "repeat: 2", "repeat: 3", {"--checkpoint.enable", "true"});
  const Overrides longer{"--training.steps", "12"};
  mixed.start("run", repeats)->run();
  std::ofstream(mixed / "notes.txt", std::ios::app) << "\n\n" << generated_text(40, 14);
  const std::string message = message_of([&] { mixed.start("run", repeats + longer); });
  CHECK_THAT(message, Contains("the weights that follow from repeat and the size of the sources differ") &&
                          Contains("restore it, or give each source the weight that it had there"));
  // What it asks for goes on.
  std::string weights[3];
  const std::string there = message.substr(message.find("checkpoint: 0: ") + 15);
  for (const auto& [name, weight] :
       {std::pair{"web ", &weights[0]}, {"books ", &weights[1]}, {"notes ", &weights[2]}})
    *weight = fmt::format("weight: {}", std::stoi(there.substr(there.find(name) + std::string(name).size())));
  const Overrides given = mixed.of(weights[0], weights[1], weights[2], {"--checkpoint.enable", "true"});
  CHECK(mixed.start("run", given + longer)->run() == Trainer::End::completed);
}

TEST_CASE("stages of a mixture begin at their steps, whatever the run has read before") {
  MixedTraining mixed;
  const auto with = [&](int steps, int batch, const Overrides& more = {}) {
    return mixed.of("weight: 3", "weight: 1", "weight: 0",
                    {"--training.mixture_stages",
                     "[{from_step: 4, weights: [1, 0, 1]}, {from_step: 8, weights: [0, 0, 1]}]",
                     "--lr_scheduler.total_steps", "10", "--checkpoint.enable", "true",
                     "--checkpoint.interval", "1", "--checkpoint.keep_latest_k", "0",
                     "--checkpoint.last_save_model_only", "false", "--training.steps", std::to_string(steps),
                     "--training.local_batch_size", std::to_string(batch)}) +
           more;
  };
  const std::string first = "0: web 49152, books 16384", second = "web 32768, notes 32768",
                    third = "notes 65536";
  const auto mixture_at_end = [&](const std::string& run, const Overrides& overrides) {
    TinyTraining::Run r = mixed.start(run, overrides);
    CHECK(r->run() == Trainer::End::completed);
    return r->state().mixture;
  };
  // A change before the second stage, one within it, and one after the third has begun.
  CHECK(mixture_at_end("run", with(2, 1)) == first);
  CHECK(mixture_at_end("run", with(3, 4)) == first);
  CHECK(mixture_at_end("run", with(5, 4)) == fmt::format("{}; 6: {}", first, second));
  CHECK(mixture_at_end("run", with(7, 1)) == fmt::format("{}; 6: {}", first, second));
  CHECK(mixture_at_end("run", with(9, 2)) == fmt::format("{}; 6: {}; 16: {}", first, second, third));
  CHECK(mixture_at_end("run", with(10, 8)) == fmt::format("{}; 6: {}; 16: {}", first, second, third));
  std::filesystem::copy(mixed / "run", mixed / "anew", std::filesystem::copy_options::recursive);

  // Data that begins anew is that of the stage.
  CHECK(mixture_at_end("run", with(8, 1,
                                   {"--checkpoint.load_step", "5", "--checkpoint.exclude_from_loading",
                                    "dataloader"})) == fmt::format("0: {}; 2: {}", second, third));
  CHECK(mixture_at_end("run", with(9, 1)) == fmt::format("0: {}; 2: {}", second, third));
  // Steps that are counted anew begin with the first weights, after what was read.
  const Overrides anew{"--checkpoint.exclude_from_loading", "train_state"};
  const std::string again = fmt::format("{}; 6: {}; 16: {}; 28: {}", first, second, third, first.substr(3));
  CHECK(mixture_at_end("anew", with(2, 1, anew)) == again);
  CHECK(mixture_at_end("anew", with(4, 1, anew)) == fmt::format("{}; 31: {}", again, second));
}

TEST_CASE("data that is left out leaves a mixture's stages at their steps") {
  MixedTraining mixed;
  auto with = [&](int steps, const Overrides& more) {
    return mixed.of(
               "weight: 3", "weight: 1", "weight: 0",
               {"--training.mixture_stages", "[{from_step: 6, weights: [1, 1, 2]}]",
                "--lr_scheduler.total_steps", "8", "--checkpoint.enable", "true", "--checkpoint.interval",
                "1", "--checkpoint.keep_latest_k", "0", "--training.steps", std::to_string(steps)}) +
           more;
  };
  mixed.start("run", with(3, {}))->run();
  // Steps 3 and 4 of the data are left out: step 3 reads what step 5 would.
  TinyTraining::Run run =
      mixed.start("run", with(5, {"--checkpoint.load_step", "2", "--checkpoint.advance_data_steps", "2"}));
  const int64_t batch = run->experiment().global_batch;
  CHECK(run->state().data_position == 4 * batch);
  run->run();
  CHECK(run->state().data_position == 7 * batch);
  CHECK_THAT(run->state().mixture, !Contains("notes"));
  TinyTraining::Run on = mixed.start("run", with(6, {}));
  CHECK(on->state().data_position == 7 * batch);
  on->run();
  CHECK_THAT(on->state().mixture,
             Contains(fmt::format("; {}: web 16384, books 16384, notes 32768", 7 * batch)));
}

TEST_CASE("bench data says how fast data is read, and what the mixture takes of it") {
  MixedTraining mixed;
  std::ostringstream out;
  const Overrides overrides =
      mixed.of("weight: 1", "weight: 1", "weight: 1",
               {"--training.seq_len", "32", "--training.local_batch_size", "2", "--job.dump_folder",
                mixed / "bench", "--model.hf_assets_path", OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256"});
  CHECK(run_bench_data_command({.file = "", .overrides = overrides, .steps = 4}, out) == 0);
  CHECK_THAT(out.str(), Contains("data: 8 sequences of 32 tokens from 3 sources in ") &&
                            Contains("mixture: ") && Contains("% of reading it"));
  CHECK_FALSE(std::filesystem::exists(mixed / "bench"));
}

TEST_CASE("validation sets by name have a loss each") {
  MixedTraining mixed;
  const Overrides common{"--validation.enable",           "true", "--validation.seq_len", "32",
                         "--validation.local_batch_size", "2",    "--validation.freq",    "8"};
  auto with = [&](const Overrides& more) { return common + more; };
  mixed
      .start("named",
             with({"--validation.datasets", "[{name: web, path: " + (mixed / "web.txt") +
                                                "}, {name: books, path: " + (mixed / "books.txt") + "}]"}))
      ->run();
  for (const char* name : {"web", "books"}) {
    mixed.start(name, with({"--validation.dataset_path", mixed / (std::string(name) + ".txt")}))->run();
    for (const char* what : {"loss", "perplexity", "bits_per_byte"}) {
      const std::vector<double> own = logged(mixed / name, std::string("validation_metrics/") + what);
      CHECK(own.size() == 2);
      CHECK(logged(mixed / "named", fmt::format("validation_metrics/{}/{}", name, what)) == own);
    }
  }
  CHECK_THAT(message_of([&] {
               mixed.config("x", with({"--validation.datasets", "[{name: a, path: x}, {name: a, path: y}]"}));
             }),
             Contains("two entries have the name \"a\""));
}
