#include "apps/train/data_watch.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"
#include "core/log.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
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
  test::run_thread_ranks({.ranks = 2, .timeout_seconds = 0.5}, [&](Communicator& world) {
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
  test::run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
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

TEST_CASE("bad data that ends a run is told with what became of the run") {
  const TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << "an octave above what is written";
  std::string saved, looked;
  test::run_thread_ranks({.ranks = 1}, [&](Communicator& world) {
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
  test::run_thread_ranks({.ranks = 1}, [&](Communicator& world) { DataWatch(loader, world).look(1); });
  log::set_level(log::Level::warning);
  CHECK_THAT(captured.text(), Contains("Data check: 49 pieces of bare ids in 0.1 MB (all of it)"));
}
