#include "apps/commands/init_command.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/config/config.h"
#include "core/device.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using Catch::Contains;

TEST_CASE("init sizes a run for the device that training.device auto takes") {
  const TemporaryFolder folder;
  std::ofstream text(folder / "a.txt");
  for (int i = 0; i < 3000; ++i) text << "some words " << i % 40 << " and no more\n";
  text.close();
  std::ostringstream out;
  run_init_command({.sources = {folder / "a.txt"},
                    .output = folder / "first",
                    .minutes = 1,
                    .tokenizer = OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256"},
                   out);
  INFO(out.str());
  const Device device = parse_device(load_config(folder / "first/ottava.yaml").training.device);
  CHECK_THAT(out.str(), Contains(" MB of text; " + to_string(device) + ": "));
  CHECK((out.str().find("measured on this CPU") == std::string::npos) == device.is_gpu());
}

TEST_CASE("init does not replace a tokenizer that an earlier one left, and says how to go on") {
  const TemporaryFolder folder;
  std::ofstream text(folder / "a.txt");
  for (int i = 0; i < 3000; ++i) text << "some words " << i % 40 << " and no more\n";
  text.close();
  const std::string kept = folder / "first/tokenizer";
  std::filesystem::create_directories(folder / "first");
  std::filesystem::copy(OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256", kept);
  InitCommand command{.sources = {folder / "a.txt"}, .output = folder / "first", .minutes = 1};
  std::ostringstream out;
  CHECK_THROWS_WITH(run_init_command(command, out),
                    "[init] " + kept + "/tokenizer.json already exists: choose another --output, or remove " +
                        kept + " to make a new tokenizer there, or keep that one with --tokenizer " + kept);
  CHECK(out.str().empty());
  command.tokenizer = kept;
  run_init_command(command, out);
  CHECK(load_config(folder / "first/ottava.yaml").model.hf_assets_path == kept);
}

namespace {

/// What init says of a.jsonl.
void check_promise(const TemporaryFolder& folder, const std::string& text) {
  std::ostringstream out;
  run_init_command({.sources = {folder / "a.jsonl"},
                    .output = folder / "first",
                    .minutes = 1,
                    .tokenizer = OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256"},
                   out);
  INFO(out.str());
  CHECK_THAT(out.str(), Contains(text));
}

}  // namespace

TEST_CASE("init counts the text of JSON lines, not what stores it") {
  const TemporaryFolder folder;
  std::ofstream lines(folder / "a.jsonl");
  for (int i = 0; i < 1000; ++i) {
    lines << R"({"source": ")" << std::string(800, 'x') << R"(", "text": "hundred bytes with escapes: )";
    for (int c = 0; c < 36; ++c) lines << R"(\u043f)";
    lines << "\"}\n";
  }
  lines.close();
  check_promise(folder, ": 0.1 MB of text; ");
}

TEST_CASE("init counts the text of JSON lines over a whole file, whose beginning may be unlike the rest") {
  const TemporaryFolder folder;
  std::ofstream lines(folder / "a.jsonl");
  const auto write = [&](int count, size_t other, size_t text) {
    for (int i = 0; i < count; ++i)
      lines << R"({"source": ")" << std::string(other, 'x') << R"(", "text": ")" << std::string(text, 'a')
            << "\"}\n";
  };
  write(9000, 970, 0);  // 9 MB of lines without text
  write(3000, 0, 970);  // 3 MB of text, nearly
  lines.close();
  check_promise(folder, ": 2.9 MB of text; ");
}
