#include "apps/config/config.h"

#include <fmt/core.h>

#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using ottava::test::message_of;
namespace fs = std::filesystem;

namespace {

bool tells(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("inputs are looked for here and beside the file, and both places are named", "[config]") {
  TemporaryFolder folder;
  folder.write("text.txt", "hello");
  const std::string file = folder.write("a.yaml", "training: {dataset_path: text.txt}\n");
  Config c = load_config(file);
  CHECK(find_input(c, "training.dataset_path", "text.txt") == folder / "text.txt");
  CHECK(find_input(c, "training.dataset_path", folder / "text.txt") == folder / "text.txt");
  CHECK(find_input(c, "training.dataset_path", "te?t*.txt") == folder / "te?t*.txt");
  CHECK(tells(message_of([&] { find_input(c, "training.dataset_path", "none/*.txt"); }),
              "[training.dataset_path] 'none/*.txt' matches no file; looked at "));
  CHECK(find_input(c, "training.dataset_path", "@text.txt").string() ==
        fmt::format("@{}", folder / "text.txt"));
  CHECK(tells(message_of([&] { find_input(c, "training.dataset_path", "@none.txt"); }),
              "'none.txt' does not exist"));
  CHECK(message_of([&] { find_input(c, "training.dataset_path", "none.txt"); }) ==
        "[training.dataset_path] 'none.txt' does not exist; looked at " +
            (fs::current_path() / "none.txt").string() + " and " + folder / "none.txt");
  CHECK(message_of([&] { find_input(c, "model.hf_assets_path", "/none"); }) ==
        "[model.hf_assets_path] '/none' does not exist; looked at /none");
  CHECK(message_of([&] { find_input(c, "model.hf_assets_path", ""); }) ==
        "[model.hf_assets_path] the path is empty");

  c.model.hf_assets_path = ".";
  CHECK(find_assets(c) == ".");
  c.model.hf_assets_path = "text.txt";
  const std::string text =
      "[model.hf_assets_path] 'text.txt' is a file, expected the folder that holds tokenizer.json (for "
      "model.flavor hf also config.json): set it to that folder";
  CHECK(message_of([&] { find_assets(c); }) == text);
  folder.write("tokenizer.json", "{}");
  CHECK(message_of([&] { find_assets(c); }) == fmt::format("{}, '{}'", text, folder.path()));
}

TEST_CASE("what training lacks is said together, before it starts", "[config]") {
  TemporaryFolder folder;
  Config c = load_config(folder.write("a.yaml",
                                      "validation: {enable: true}\ncheckpoint: {initial_load_path: /none}\n"
                                      "model: {hf_assets_path: /nowhere}\n"));
  std::string text = message_of([&] { require_inputs(c); });
  CHECK(tells(text, "4 problems"));
  CHECK_FALSE(
      tells(text, "can be trained after adding"));  // checkpoint.initial_load_path would still be missing
  CHECK(tells(text,
              "default: training.dataset_path: no data is given; training.dataset 'c4_test' is only a name, "
              "and nothing is downloaded: set --training.dataset_path to a file, folder or glob"));
  CHECK(tells(text, "default: validation.dataset_path: no data is given"));
  CHECK(tells(text, "a.yaml:2:33: checkpoint.initial_load_path: '/none' does not exist"));
  CHECK(tells(text, "a.yaml:3:25: model.hf_assets_path: "));
  // The message names everything that has to be given on the command line.
  const Config both = load_config(folder.write(
      "both.yaml", "training: {dataset_path: [t.txt, none.txt, /nor]}\nmodel: {hf_assets_path: /nowhere}\n"));
  CHECK(tells(message_of([&] { require_inputs(both); }),
              "both.yaml, which can be trained after adding --model.hf_assets_path FOLDER_WITH_TOKENIZER "
              "--training.dataset_path TEXT:"));
  folder.write("t.txt", "x");
  Config good =
      load_config(folder.write("b.yaml", "training: {dataset_path: t.txt}\nmodel: {hf_assets_path: .}\n"));
  CHECK(message_of([&] { require_inputs(good); }) == "no error");
  for (const char* step : {"run/a/step-1", "run/b/step-2"}) fs::create_directories(folder / step);
  good.checkpoint.initial_load_path = "run/a";
  CHECK(message_of([&] { require_inputs(good); }) == "no error");
  good.checkpoint.initial_load_path = "run";
  CHECK(tells(message_of([&] { require_inputs(good); }), "both contain checkpoints: choose one of them"));
  good.checkpoint.initial_load_path = "t.txt";
  CHECK(tells(message_of([&] { require_inputs(good); }), "t.txt is not a folder"));
  good.checkpoint.initial_load_path = {};
  good.model.hf_assets_path = "t.txt";
  CHECK(tells(message_of([&] { require_inputs(good); }),
              "b.yaml:2:25: model.hf_assets_path: 't.txt' is a file, expected the folder"));
}

TEST_CASE("a path with a comma that the command line splits is told how to be written", "[config]") {
  TemporaryFolder folder;
  const std::string path = folder.write("a,b.txt", "hello"), key = "--training.dataset_path";
  const auto message_with = [&](const std::string& value) {
    const Config c = load_config("", {key, value, "--model.hf_assets_path", folder.path()});
    return message_of([&] { require_inputs(c); });
  };
  CHECK(tells(message_with(path), "training.dataset_path: '" + path +
                                      "' exists, but commas separate paths on the command line: write " +
                                      key + " '[\"" + path + "\"]'"));
  CHECK(message_with("[\"" + path + "\"]") == "no error");
  CHECK(tells(message_with(path + ",none"), "'none' does not exist"));
}

TEST_CASE("paths that a file writes as one text with commas are told to be a list", "[config]") {
  TemporaryFolder folder;
  for (const char* name : {"a.txt", "b.txt"}) folder.write(name, "hello");
  const auto message_with = [&](const std::string& training) {
    const std::string file = folder.write(
        "c.yaml", fmt::format("training: {}\nmodel: {{hf_assets_path: {}}}\n", training, folder.path()));
    return message_of([&] { require_inputs(load_config(file)); });
  };
  const std::string told = "is one path, which does not exist; write a list: [\"a.txt\", \"b.txt\"]";
  CHECK(tells(message_with("{dataset_path: 'a.txt,b.txt'}"), "training.dataset_path: 'a.txt,b.txt' " + told));
  CHECK(tells(message_with("{mixture: [{name: m, path: 'a.txt,b.txt'}]}"), "'a.txt,b.txt' " + told));
  CHECK(
      tells(message_with("{dataset_path: 'a.txt, b.txt'}"), "training.dataset_path: 'a.txt, b.txt' " + told));
  CHECK(tells(message_with("{dataset_path: '*.txt,b.txt'}"), "write a list: [\"*.txt\", \"b.txt\"]"));
  CHECK(message_with("{dataset_path: [\"*.txt\", \"b.txt\"]}") == "no error");
  CHECK(
      tells(message_with("{dataset_path: 'a.txt,none.txt'}"), "'a.txt,none.txt' does not exist; looked at "));
}
