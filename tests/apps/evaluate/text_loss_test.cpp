#include "apps/evaluate/text_loss.h"

#include <fmt/core.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "apps/commands/eval_command.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;

namespace {

const std::string kTexts = OTTAVA_SOURCE_DIR "/tests/golden/evaluate/";
using Tokens = std::vector<int32_t>;

struct Scored {
  Json scores;
  std::string lines, notes;
};
Scored scored_texts(const TemporaryFolder& folder, EvalCommand command) {
  command.model = command.model.empty() ? kTexts + "model" : command.model;
  command.json = folder / "scores.json";
  command.dtype = "float32";
  std::ostringstream out, notes;
  run_eval_command(command, out, notes);
  return {Json::parse(read_file(command.json), "scores.json"), out.str(), notes.str()};
}
double number(const Json& scores, size_t at, const char* name) {
  return scores.as_array("")[at].at(name, "").as_number(name);
}

}  // namespace

TEST_CASE("every token of a text but the first is predicted once, behind as many as a window holds") {
  CHECK(text_windows({7}, 4).empty());
  CHECK(text_windows({7, 1, 2}, 4) == std::vector<Tokens>{{~7, 1, 2}});
  CHECK(text_windows({7, 1, 2, 3, 4, 5, 6}, 4) == std::vector<Tokens>{{~7, 1, 2, 3, 4}, {~2, ~3, ~4, 5, 6}});
  CHECK(text_windows({7, 1, 2, 3, 4}, 2) == std::vector<Tokens>{{~7, 1, 2}, {~2, 3, 4}});

  const auto by_id = [](const HostTokens& t, std::span<float> losses) {
    for (size_t i = 0; i < losses.size(); ++i)
      losses[i] = t.targets[i] < 0 ? 0.0F : static_cast<float>(t.targets[i]);
  };
  TextLoss loss;
  add_documents({{7, 1, 2, 3, 4, 5, 6}, {}, {9}, {9, 20, 30}}, 4, {.batch = 2, .sequence = 8, .pass = by_id},
                loss);
  CHECK(loss.nats == 21 + 50);
  CHECK(loss.tokens == 8);
  CHECK(loss.documents == 2);
  loss.bytes = 16;
  CHECK(loss.bits_per_byte() == Approx(71 / std::log(2.0) / 16));
}

TEST_CASE("the log-likelihood of texts is that of lm-evaluation-harness") {
  const TemporaryFolder folder;
  const Json golden = Json::parse(read_file(kTexts + "golden.json"), "golden.json");
  const std::string lines = read_file(kTexts + "texts.jsonl");
  std::istringstream each(lines);
  double sum = 0, tokens = 0, bytes = 0;
  int64_t count = 0;
  for (std::string line; std::getline(each, line); ++count) {
    const std::string file = folder / "text.txt",
                      text = Json::parse(line, "line").at("text", "line").as_string("text");
    std::ofstream(file) << text;
    const double expected = golden.at("texts", "golden").as_array("texts")[count].as_number("text");
    const Json scores = scored_texts(folder, {.texts = {file}, .seq_len = 96, .batch = 2}).scores;
    CHECK(-number(scores, 0, "loss") * number(scores, 0, "tokens") ==
          Approx(expected).epsilon(1e-5).margin(1e-3));
    CHECK(number(scores, 0, "bytes") == static_cast<double>(text.size()));
    CHECK(number(scores, 0, "perplexity") == Approx(std::exp(number(scores, 0, "loss"))));
    sum += expected, tokens += number(scores, 0, "tokens"), bytes += static_cast<double>(text.size());
  }
  REQUIRE(count == 4);
  // All of them as lines of JSON, beside questions and in passes of another shape.
  const Scored all = scored_texts(
      folder,
      {.tasks = {kTexts + "own.jsonl"}, .texts = {kTexts + "texts.jsonl"}, .seq_len = 96, .batch = 5});
  CHECK(number(all.scores, 1, "documents") == 4);
  CHECK(number(all.scores, 1, "tokens") == tokens);
  CHECK(number(all.scores, 1, "loss") == Approx(-sum / tokens).epsilon(1e-5));
  CHECK(number(all.scores, 1, "bits_per_byte") == Approx(-sum / std::log(2.0) / bytes).epsilon(1e-5));
  CHECK_THAT(all.lines, Contains("own: acc ") && Contains("texts.jsonl: loss ") &&
                            Contains(fmt::format("({} tokens and {} bytes of 4 documents)",
                                                 static_cast<int64_t>(tokens), static_cast<int64_t>(bytes))));
  CHECK(all.notes.empty());
}

TEST_CASE("texts are predicted in windows no longer than the model is meant for") {
  const TemporaryFolder folder;
  const auto loss = [&](int64_t sequence) {
    return scored_texts(folder, {.texts = {kTexts + "texts.jsonl"}, .seq_len = sequence, .batch = 1});
  };
  const Scored at_most = loss(512), beyond = loss(1024);
  CHECK(at_most.notes.empty());
  CHECK_THAT(beyond.notes,
             Contains("texts are predicted in windows of 512 tokens, not 1024: the model supports "
                      "no more (max_position_embeddings in config.json)"));
  CHECK(number(beyond.scores, 0, "loss") == Approx(number(at_most.scores, 0, "loss")).epsilon(1e-6));
  CHECK(number(loss(96).scores, 0, "loss") != Approx(number(at_most.scores, 0, "loss")).epsilon(1e-6));
}

TEST_CASE("what is no text, or would be written over, is refused before texts are predicted") {
  const TemporaryFolder folder;
  const auto refusal_of = [&](EvalCommand command) {
    command.model = kTexts + "model";
    std::ostringstream out;
    return message_of([&] { run_eval_command(command, out, out); });
  };
  CHECK_THAT(refusal_of({}), Contains("[eval] there is nothing to score: give questions as --tasks, texts as "
                                      "--text, or both"));
  std::ofstream(folder / "shard.bin", std::ios::binary)
      << std::string("\x88\xd8\x34\x01\x01\x00\x00\x00\x02\x00\x00\x00", 12) << std::string(1012, '\0')
      << "abcd";
  CHECK_THAT(refusal_of({.texts = {folder / "shard.bin"}}),
             Contains("shard.bin' is already tokenized (llm.c shard); expected text or JSON lines"));
  std::ofstream(folder / "a.jsonl") << "{\"text\": \"\"}\n{\"text\": \"\"}\n";
  CHECK_THAT(refusal_of({.texts = {folder / "a.jsonl"}}), Contains("[eval] there is no text in '"));
  CHECK_THAT(refusal_of({.texts = {folder / "a.jsonl"}, .text_key = "body"}),
             Contains("--text-key of init, data, eval, generate and"));
  std::ofstream(folder / "chats.jsonl") << R"({"messages": []})"
                                        << "\n";
  CHECK_THAT(refusal_of({.texts = {folder / "chats.jsonl"}}),
             Contains("eval --text and init read only plain texts"));
  std::ofstream(folder / "b.txt") << "words";
  CHECK_THAT(refusal_of({.texts = {folder / "b.txt"}, .json = folder / "b.txt"}), Contains("b.txt"));
  CHECK(read_file(folder / "b.txt") == "words");
}
