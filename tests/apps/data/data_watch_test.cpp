#include "apps/data/data_watch.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/data/chat/chat_encoder.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"
#include "core/log.h"
#include "parallel/checkpoint/folder.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

data::MixedLoader loader_of(const std::string& path) {
  data::LoaderOptions options;
  options.sources = {path};
  options.encoder =
      data::make_text_encoder(Tokenizer::load(OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256"), {});
  options.seq_len = 16;
  return data::MixedLoader(std::move(options));
}

}  // namespace

TEST_CASE("ranks wait for rank 0's look through the data however short the limit of their calls is") {
  const TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << "an octave above what is written";
  std::atomic<int> ended = 0;
  run_thread_ranks({.ranks = 2, .timeout_seconds = 0.5}, [&](Communicator& world) {
    data::MixedLoader loader = loader_of(folder / "text.txt");
    DataWatch watch(loader, world);
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // much data
    watch.look(1);
    ended += world.state().timeout_seconds() == 0.5;
  });
  CHECK(ended == 2);
}

TEST_CASE("what rank 0 finds in the data is a DataError of all ranks") {
  const TemporaryFolder folder;
  std::ofstream(folder / "lines.jsonl") << "{\"text\": \"an octave above\"}\n{\"text\": \n";
  std::atomic<int> told = 0;
  run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    data::MixedLoader loader = loader_of(folder / "lines.jsonl");
    try {
      DataWatch(loader, world).look(1);
    } catch (const DataError& error) {
      const std::string_view said = error.what();
      told += said.starts_with("[ranks] rank 0 cannot continue: ") && said.find("lines.jsonl") != said.npos;
    }
  });
  CHECK(told == 2);
}

TEST_CASE("what training leaves out of its data is told by one rank") {
  const TemporaryFolder folder;
  std::ofstream lines(folder / "lines.jsonl");
  lines << "no json\n";
  for (int i = 0; i < 20; ++i)
    lines << R"({"text": "an octave above what is written"})"
          << "\n"
          << std::flush;
  std::atomic<int> ended = 0;
  const CapturedOutput log;
  run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    data::LoaderOptions options = loader_of(folder / "lines.jsonl").sources()[0].loader->options();
    options.bad_records = data::BadRecords::skip;
    data::MixedLoader loader(std::move(options));
    std::vector<int32_t> inputs(16), targets(16);
    loader.read(0, 1, {.inputs = inputs.data(), .targets = targets.data()});
    ended += DataWatch(loader, world).poll();
  });
  CHECK(ended == 0);
  const std::string text = log.text(),
                    told = "1 bad record on rank 0 left out so far (training.bad_records: skip)";
  CHECK_THAT(text, Contains(told));
  CHECK(text.find(told) == text.rfind(told));
}

TEST_CASE("training tells of completions that begin inside a token, each once however often it is read") {
  const TemporaryFolder folder;
  std::ofstream lines(folder / "pairs.jsonl");
  for (int i = 0; i < 3; ++i)
    lines << R"({"prompt": "It is the ", "completion": "the end"})"
          << "\n";
  lines.close();
  const auto tokenizer = Tokenizer::load(OTTAVA_SOURCE_DIR "/tests/golden/chat/llama");
  const CapturedOutput log;
  run_thread_ranks({.ranks = 1}, [&](Communicator& world) {
    data::LoaderOptions options;
    options.sources = {folder / "pairs.jsonl"};
    options.format = data::format_named("prompt_completion");
    options.encoder = data::make_text_encoder(tokenizer, {});
    options.encoder.chat = std::make_shared<data::ChatEncoder>(
        tokenizer, data::ChatEncoder::Options{.format = data::ChatFormat::prompt_completion, .chat = {}});
    options.seq_len = 32;
    data::MixedLoader loader(std::move(options));
    std::vector<int32_t> inputs(32), targets(32);
    DataWatch watch(loader, world);
    for (int64_t sample = 0; sample < 10; ++sample) {
      loader.read(sample, 1, {.inputs = inputs.data(), .targets = targets.data()});
      watch.poll();
    }
  });
  const std::string text = log.text(), told = "In 3 completions so far the first token begins in the prompt";
  CHECK_THAT(text, Contains(told));
  CHECK(text.find(told) == text.rfind("the first token begins") - told.find("the first token"));
}

TEST_CASE("bad data that ends a run is told with what became of the run") {
  const TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << "an octave above what is written";
  std::string saved, looked;
  run_thread_ranks({.ranks = 1}, [&](Communicator& world) {
    data::MixedLoader loader = loader_of(folder / "text.txt");
    DataWatch watch(loader, world);
    watch.object("the text is bad");
    for (auto& [said, not_saved] :
         {std::pair(&saved, ""), std::pair(&looked, "checkpoint.load_only is true")}) {
      try {
        watch.refuse(7, not_saved);
      } catch (const DataError& error) {
        *said = error.what();
      }
    }
  });
  CHECK_THAT(saved, Contains("the text is bad; the run ends after step 7, whose checkpoint is saved"));
  CHECK_THAT(looked, Contains("after step 7, and nothing was saved (checkpoint.load_only is true)"));
}

TEST_CASE("the check of bare ids counts pieces, which it does not call documents") {
  const TemporaryFolder folder;
  std::ofstream(folder / "ids.bin", std::ios::binary) << std::string(100'000, '\1');
  data::LoaderOptions options;
  options.sources = {folder / "ids.bin"};
  options.format = data::Format::tokens_u16;
  options.encoder =
      data::make_text_encoder(Tokenizer::load(OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256"), {});
  options.seq_len = 16;
  data::MixedLoader loader(std::move(options));
  const CapturedOutput captured;
  log::set_level(log::Level::info);
  run_thread_ranks({.ranks = 1}, [&](Communicator& world) { DataWatch(loader, world).look(1); });
  log::set_level(log::Level::warning);
  CHECK_THAT(captured.text(), Contains("Data check: 49 pieces of bare ids in 0.1 MB (all of it)"));
}

TEST_CASE(
    "validation data that can no longer be read ends a run with that step saved, whichever rank finds out") {
  TinyTraining tiny;
  const std::string first = tiny / "first.txt", second = tiny / "second.txt", text = generated_text(3);
  for (const std::string& path : {first, second}) std::ofstream(path) << text;
  const int ranks = GENERATE(1, 2);
  const bool at_the_end = GENERATE(false, true);
  const Overrides overrides =
      kSaving +
      words(
          "--checkpoint.interval 1000 --validation.enable true --validation.freq 4 "
          "--validation.seq_len 32") +
      Overrides{"--training.steps", at_the_end ? "4" : "8", "--parallelism.data_parallel_replicate_degree",
                std::to_string(ranks)};
  const std::string& changed = ranks == 1 ? first : second;
  std::vector<std::string> errors(ranks);
  const auto run_all = [&](const std::string& more) {
    run_thread_ranks({.ranks = ranks}, [&](Communicator& world) {
      Config c = tiny.config("run", overrides);
      c.validation.dataset_path = {world.rank() == 0 ? first : second};
      const Experiment e = resolve_experiment(c, load_tokenizer(c), ranks);
      RankGroups groups = groups_over(world, e.mesh);
      Trainer trainer(e, groups, {DeviceType::cpu, 0}, nullptr);
      if (world.rank() == ranks - 1 && !more.empty()) std::ofstream(changed) << text << more;
      errors[world.rank()] = message_of([&] { trainer.run(); });
    });
  };
  run_all("more");
  const auto steps = checkpoint::list_steps(tiny / "run/checkpoint");
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].step == 4);
  for (const std::string& error : errors) {
    CHECK(has(error, changed + "' changed while it was being read"));
    CHECK(has(error, "the run ends after step 4, whose checkpoint is saved"));
  }
  // Once the data is whole again, that validation comes first.
  CHECK(logged(tiny / "run", "validation_metrics/loss").size() == 1);
  std::ofstream(changed) << text;
  run_all("");
  for (const std::string& error : errors) CHECK(error == "no error");
  CHECK(logged(tiny / "run", "validation_metrics/loss").size() == (at_the_end ? 2 : 3));
}

TEST_CASE(
    "data that can no longer be read ends a run with its last whole step saved, whichever rank finds out") {
  TinyTraining tiny;
  const std::string first = tiny / "first.txt", second = tiny / "second.txt", text = generated_text(3);
  for (const std::string& path : {first, second}) std::ofstream(path) << text;
  const int ranks = GENERATE(1, 2);
  // The text is read ahead, once for each time that training goes through it.
  const Overrides overrides =
      kSaving + words("--training.steps 300 --checkpoint.interval 1000") +
      Overrides{"--parallelism.data_parallel_replicate_degree", std::to_string(ranks)};
  const auto run_all = [&](const std::string& name, const std::function<void(Trainer&, int rank)>& work) {
    run_thread_ranks({.ranks = ranks}, [&](Communicator& world) {
      Config c = tiny.config(name, overrides);
      c.training.dataset_path = {world.rank() == 0 ? first : second};
      const Experiment e = resolve_experiment(c, load_tokenizer(c), ranks);
      RankGroups groups = groups_over(world, e.mesh);
      Trainer trainer(e, groups, {DeviceType::cpu, 0}, nullptr);
      work(trainer, world.rank());
    });
  };
  const std::string& changed = ranks == 1 ? first : second;
  std::vector<std::string> errors(ranks);
  run_all("cut", [&](Trainer& trainer, int rank) {
    trainer.step(nullptr);
    if (ranks == 1 || rank == 1) std::ofstream(changed) << text << "more";
    errors[rank] = message_of([&] { trainer.run(); });
  });
  std::ofstream(changed) << text;
  const auto steps = checkpoint::list_steps(tiny / "cut/checkpoint");
  REQUIRE(steps.size() == 1);
  for (const std::string& error : errors) {
    CHECK(has(error, changed + "' changed while it was being read"));
    CHECK(has(error, fmt::format("the run ends after step {}, whose checkpoint is saved", steps[0].step)));
  }
  Everything whole, resumed;
  std::vector<int64_t> resumed_at(ranks);
  run_all("whole", [&](Trainer& trainer, int rank) {
    trainer.run();
    if (rank == 0) whole = everything_of(trainer);
  });
  run_all("cut", [&](Trainer& trainer, int rank) {
    resumed_at[rank] = trainer.state().step;
    trainer.run();
    if (rank == 0) resumed = everything_of(trainer);
  });
  CHECK(resumed_at == std::vector<int64_t>(ranks, steps[0].step));
  CHECK((resumed == whole));
}
