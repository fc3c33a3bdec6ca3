#include "apps/data/resumed_data.h"

#include <chrono>
#include <filesystem>
#include <fstream>

#include "core/data/tokenizer/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using Catch::Contains;
namespace fs = std::filesystem;

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
