#include "apps/data/resumed_data.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/data/tokenizer/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using Catch::Contains;
namespace fs = std::filesystem;

TEST_CASE("a run that continues with another file in a mixture is told which source has it") {
  const TemporaryFolder folder;
  const auto tokenizer = Tokenizer::load(OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256");
  TrainingState state;
  state.data_position = 10;
  const auto changes = [&] {
    std::vector<data::MixedLoader::Source> sources;
    for (const char* name : {"books", "web", "notes"}) {
      data::LoaderOptions options;
      options.sources = {folder / (std::string(name) + ".txt")};
      options.encoder = data::make_text_encoder(tokenizer, {});
      options.seq_len = 8;
      sources.push_back({name, std::make_unique<data::TokenLoader>(options)});
    }
    const data::MixedLoader loader(std::move(sources), data::Mixture({{0, {1, 1, 1}}}));
    const std::vector<std::string> found = changes_of_files(state, loader);
    note_data(state, loader);
    return found;
  };
  for (const char* name : {"books", "web", "notes"})
    std::ofstream(folder / (std::string(name) + ".txt")) << "a text of some words, as long as it has to be\n";
  CHECK(changes().empty());  // the state had no versions yet
  CHECK(changes().empty());
  std::ofstream(folder / "web.txt", std::ios::app) << "and a line that was not there\n";
  CHECK(changes() ==
        std::vector<std::string>{"of the sources, the files of web are not those of the checkpoint"});
  CHECK(changes().empty());
}

TEST_CASE("of data too long to be read at the start of a run, other times are told and nothing is claimed") {
  const TemporaryFolder folder;
  const std::string path = folder / "ids.bin";
  std::ofstream{path};
  fs::resize_file(path, (256 << 20) + 2);  // sparse: it takes no space
  data::LoaderOptions options;
  options.sources = {path};
  options.format = data::Format::tokens_u16;
  options.encoder =
      data::make_text_encoder(Tokenizer::load(OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256"), {});
  options.seq_len = 16;
  TrainingState state;
  const auto changes = [&] {
    const data::MixedLoader loader(options);
    const std::vector<std::string> found = changes_of_files(state, loader);
    note_data(state, loader);
    return found;
  };
  CHECK(changes().empty());  // the state had no versions yet
  CHECK(changes().empty());
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
  const std::vector<std::string> found = changes();
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0], Contains("the files of the training data have other modification times"));
  CHECK(changes().empty());
  // A change that shows in the fingerprint is reported there, not here too.
  fs::resize_file(path, (256 << 20) + 4);
  CHECK(changes().empty());
}
