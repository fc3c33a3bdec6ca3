#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "apps/commands/eval_command.h"
#include "apps/commands/generate_command.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

// What the commands do with a model that has a sliding window.

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;

namespace {

const std::string kFiles = OTTAVA_SOURCE_DIR "/tests/golden/evaluate/";

/// The model of the golden files as a Mistral with a window of 40 tokens.
std::string write_windowed(const TemporaryFolder& folder) {
  std::string model = folder / "model";
  std::filesystem::copy(kFiles + "model", model);
  std::string config = read_file(model + "/config.json");
  for (const auto& [was, now] :
       {std::pair<std::string_view, std::string_view>{"LlamaForCausalLM", "MistralForCausalLM"},
        {"\"model_type\": \"llama\"", "\"model_type\": \"mistral\", \"sliding_window\": 40"}})
    config.replace(config.find(was), was.size(), now);
  std::ofstream(model + "/config.json") << config;
  return model;
}

}  // namespace

TEST_CASE("questions and texts are scored in passes within a model's window") {
  const TemporaryFolder folder;
  const std::string windowed = write_windowed(folder);
  const auto scored = [&](EvalCommand c, std::string* noted) {
    c.json = folder / "scores.json", c.dtype = "float32", c.max_examples = 4;
    std::ostringstream out, notes;
    run_eval_command(c, out, notes);
    *noted = notes.str();
    return read_file(c.json);
  };
  for (const bool has_texts : {false, true}) {
    INFO("texts: " << has_texts);
    EvalCommand c{.model = kFiles + "model", .tasks = {kFiles + "own.jsonl"}, .seq_len = 40};
    if (has_texts) c.texts = {kFiles + "texts.jsonl"};
    std::string none, noted;
    const std::string expected = scored(c, &none);
    c.model = windowed;
    CHECK(scored(c, &noted) == expected);
    CHECK(noted == none);
    c.seq_len = 1024;
    CHECK(scored(c, &noted) == expected);
    CHECK_THAT(noted,
               Contains("the beginning of questions that with a choice make more than 40 tokens is left "
                        "out: the model supports no more (sliding_window in config.json)"));
    const std::string of_texts =
        "texts are predicted in windows of 40 tokens, not 1024: the model supports no more (sliding_window "
        "in "
        "config.json)";
    CHECK((noted.find(of_texts) != std::string::npos) == has_texts);
  }
}

TEST_CASE("more text than a model's window is refused by the names of options") {
  const TemporaryFolder folder;
  const std::string windowed = write_windowed(folder);
  const auto refusal_of = [&](GenerateCommand c) {
    c.checkpoint = windowed, c.dtype = "float32";
    std::istringstream nothing;
    c.input = &nothing;
    std::ostringstream out;
    return message_of([&] { run_generate_command(c, out, out); });
  };
  CHECK(refusal_of({.prompts = {"a"}, .max_tokens = 16}) == "no error");
  CHECK_THAT(refusal_of({.prompts = {"a"}, .max_tokens = 40}),
             Contains("[generate] the prompt and --max-tokens make up to 4") &&
                 Contains(" tokens, but the model supports 40 (sliding_window in config.json): lower "
                          "--max-tokens, or shorten the prompt"));
  CHECK(refusal_of({.max_tokens = 16, .is_chat = true, .context = 41}) ==
        "[generate] conversations of this --context make up to 41 tokens, but the model supports 40 "
        "(sliding_window in config.json): lower --context");
}
