#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "apps/commands/eval_command.h"
#include "apps/evaluate/choice_scores.h"
#include "apps/evaluate/choice_task.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/threads/parallel_for.h"
#include "tests/core/data/compress.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;

namespace {

const std::string kGolden = OTTAVA_SOURCE_DIR "/tests/golden/evaluate/";

Json scored(int64_t sequence, int64_t batch) {
  const TemporaryFolder folder;
  std::ostringstream out;
  run_eval_command({.model = kGolden + "model",
                    .tasks = {kGolden + "own.jsonl", kGolden + "hellaswag.jsonl", kGolden + "arc.jsonl"},
                    .seq_len = sequence,
                    .batch = batch,
                    .json = folder / "scores.json",
                    .dtype = "float32"},
                   out, out);
  CHECK_THAT(out.str(), Contains("hellaswag: acc 33.3% +- 6.1, acc_norm 30.0% +- 6.0"));
  return Json::parse(read_file(folder / "scores.json"), "scores.json");
}

/// A loss that is a function of the token and of where it stands in its document.
void losses_by_place(const HostTokens& t, std::span<float> losses) {
  for (size_t i = 0; i < losses.size(); ++i)
    losses[i] = t.targets[i] < 0 ? 0.0F
                                 : static_cast<float>(t.targets[i] % 13 + t.inputs[i] % 7) +
                                       0.25F * static_cast<float>(t.positions[i] % 5);
}

ChoiceScores scores_of(const ChoiceTask& task, const Tokenizer& tokenizer, const TokenLosses& model) {
  return score_choices(task, encode_choices(task, tokenizer, model.sequence), model);
}

std::string refusal(std::string_view line) {
  return message_of([&] { read_choice_item(line, "'x.jsonl' line 3"); });
}

}  // namespace

TEST_CASE("scores and log-likelihoods are those of lm-evaluation-harness") {
  const Json golden = Json::parse(read_file(kGolden + "golden.json"), "golden.json");
  const auto& expected = golden.at("tasks", "golden").as_array("tasks");
  // Many choices to a window, or few.
  for (const auto& [sequence, batch] : {std::pair{256, 4}, std::pair{160, 1}, std::pair{16384, 8}}) {
    const Json scores = scored(sequence, batch);
    REQUIRE(scores.as_array("").size() == 3);
    for (size_t t = 0; t < 3; ++t) {
      const Json& ours = scores.as_array("")[t];
      const std::string name = expected[t].at("name", "task").as_string("name");
      INFO(name << " in windows of " << sequence);
      CHECK(ours.at("name", "").as_string("") == name);
      for (const char* metric :
           {"acc", "acc_norm", "acc_bytes", "acc_stderr", "acc_norm_stderr", "acc_bytes_stderr"})
        CHECK(std::abs(ours.at(metric, "").as_number("") - expected[t].at(metric, "").as_number("")) < 1e-9);
      const auto &own = ours.at("log_likelihoods", "").as_array(""),
                 &theirs = expected[t].at("log_likelihoods", "").as_array("");
      REQUIRE(own.size() == theirs.size());
      for (size_t i = 0; i < own.size(); ++i) {
        REQUIRE(own[i].as_array("").size() == theirs[i].as_array("").size());
        for (size_t c = 0; c < own[i].as_array("").size(); ++c) {
          const double theirs_of = theirs[i].as_array("")[c].as_number("");
          CHECK(std::abs(own[i].as_array("")[c].as_number("") - theirs_of) <
                1e-3 + 1e-5 * std::abs(theirs_of));
        }
      }
    }
  }
}

TEST_CASE("a pass is no larger than the choices need, and their scores are the same") {
  const auto tokenizer = Tokenizer::load(kGolden + "model");
  const ChoiceTask all = read_choice_task(kGolden + "own.jsonl"),
                   few = read_choice_task(kGolden + "own.jsonl", 2);
  const auto shape = [&](const ChoiceTask& task, PassShape most) {
    const PassShape pass = smallest_pass(std::vector{encode_choices(task, *tokenizer, most.sequence)}, most);
    return std::pair(pass.batch, pass.sequence);
  };
  const auto [one, needed] = shape(few, {.batch = 4, .sequence = 16384});
  CHECK(one == 1);
  CHECK(needed < 1024);
  CHECK(needed % 64 == 0);
  CHECK(shape(few, {.batch = 4, .sequence = 100}).second == 100);
  CHECK(shape(all, {.batch = 4, .sequence = 256}) == std::pair(int64_t{4}, int64_t{256}));
  const ChoiceScores smallest =
      scores_of(few, *tokenizer, {.batch = one, .sequence = needed, .pass = losses_by_place});
  CHECK(smallest.items == 2);
  CHECK(smallest.log_likelihoods ==
        scores_of(few, *tokenizer, {.batch = 4, .sequence = 16384, .pass = losses_by_place}).log_likelihoods);

  std::map<std::pair<int64_t, int64_t>, std::string> scores;
  for (const auto& [sequence, batch] : {std::pair<int64_t, int64_t>{needed, 1}, {16384, 4}}) {
    const TemporaryFolder folder;
    std::ostringstream out;
    run_eval_command({.model = kGolden + "model",
                      .tasks = {kGolden + "own.jsonl"},
                      .max_examples = 2,
                      .seq_len = sequence,
                      .batch = batch,
                      .json = folder / "scores.json",
                      .dtype = "float32"},
                     out, out);
    scores[{sequence, batch}] = read_file(folder / "scores.json");
  }
  CHECK(scores.begin()->second == scores.rbegin()->second);
}

TEST_CASE("equal choices have equal scores wherever they would lie, and the first of them counts") {
  const auto tokenizer = Tokenizer::load(kGolden + "model");
  ChoiceTask task = read_choice_task(kGolden + "own.jsonl", 2);
  for (ChoiceItem& item : task.items) {
    item.choices = {"the same", "another", "the same"};
    item.gold = 0;
  }
  // As a model whose last bits depend on the place in the window, but much more.
  const auto by_window = [](const HostTokens& t, std::span<float> losses) {
    for (size_t i = 0; i < losses.size(); ++i)
      losses[i] = t.targets[i] < 0 ? 0.0F : static_cast<float>(losses.size() - i);
  };
  const ChoiceScores scores = scores_of(task, *tokenizer, {.batch = 2, .sequence = 256, .pass = by_window});
  CHECK(scores.choices == 6);
  for (const std::vector<double>& of_item : scores.log_likelihoods) {
    REQUIRE(of_item.size() == 3);
    CHECK(of_item[0] == of_item[2]);
    CHECK(of_item[0] != of_item[1]);
  }
  CHECK(encode_choices(task, *tokenizer, 256).documents.size() == 4);
}

TEST_CASE("questions longer than the model is meant for are told") {
  const TemporaryFolder folder;
  const std::string model = folder / "model";
  std::filesystem::copy(kGolden + "model", model);
  std::string config = read_file(model + "/config.json");
  const std::string key = "\"max_position_embeddings\": ";
  const size_t at = config.find(key) + key.size();
  config.replace(at, config.find(',', at) - at, "8");
  std::ofstream(model + "/config.json") << config;
  const auto noted = [&](const std::string& of, int64_t sequence) {
    std::ostringstream out, notes;
    run_eval_command({.model = of,
                      .tasks = {kGolden + "own.jsonl"},
                      .max_examples = 4,
                      .seq_len = sequence,
                      .dtype = "float32"},
                     out, notes);
    return notes.str();
  };
  CHECK_THAT(noted(model, 1024), Contains("questions with a choice make up to ") &&
                                     Contains(" tokens, but the model supports 8 (max_position_embeddings"));
  CHECK(noted(model, 8).empty());
  CHECK(noted(kGolden + "model", 1024).empty());
}

TEST_CASE("tasks are named by their files, whose dots are kept, and equal names are told apart") {
  CHECK(without_endings("a.b/arc.easy.jsonl.gz") == "a.b/arc.easy");
  CHECK(without_endings("hellaswag_val.jsonl") == "hellaswag_val");
  CHECK(without_endings("v1.5") == "v1.5");
  const TemporaryFolder folder;
  const std::string line = R"({"query": "a", "choices": ["b", "c"], "gold": 0})";
  std::filesystem::create_directories(folder / "other");
  for (const char* name : {"arc.easy.jsonl", "arc.challenge.jsonl", "other/arc.easy.json"})
    std::ofstream(folder / name) << line << "\n";
  std::ostringstream out;
  run_eval_command(
      {.model = kGolden + "model",
       .tasks = {folder / "arc.easy.jsonl", folder / "arc.challenge.jsonl", folder / "other/arc.easy.json"}},
      out, out);
  CHECK_THAT(out.str(), Contains((folder / "arc.easy") + ": acc ") && Contains("arc.challenge: acc ") &&
                            Contains((folder / "other/arc.easy") + ": acc "));
  CHECK(out.str().find((folder / "arc.challenge")) == std::string::npos);
  CHECK_THAT(message_of([&] {
               run_eval_command({.model = kGolden + "model",
                                 .tasks = {folder / "arc.easy.jsonl", folder / "arc.easy.jsonl"}},
                                out, out);
             }),
             Contains("[eval] two of the --tasks are named '" + (folder / "arc.easy") + "'"));
}

TEST_CASE("ranks that divide the windows find the same scores as one") {
  const ChoiceTask task = read_choice_task(kGolden + "own.jsonl");
  const auto tokenizer = Tokenizer::load(kGolden + "model");
  TokenLosses model{.batch = 2, .sequence = 150, .pass = losses_by_place};
  const ChoiceScores one = scores_of(task, *tokenizer, model);
  CHECK(one.items == 80);
  CHECK(one.cut == 0);
  std::vector<std::vector<double>> parts;
  for (const bool is_second : {false, true}) {
    for (int rank = 0; rank < 3; ++rank) {
      model.rank = rank;
      model.ranks = 3;
      model.add_up = [&](std::span<double> sums) {
        if (!is_second) return parts.emplace_back(sums.begin(), sums.end()), void();
        for (size_t i = 0; i < sums.size(); ++i) sums[i] = parts[0][i] + parts[1][i] + parts[2][i];
      };
      const ChoiceScores scores = scores_of(task, *tokenizer, model);
      if (is_second) CHECK(scores.log_likelihoods == one.log_likelihoods);
    }
  }
  // What is longer than a window loses its beginning, and that is said.
  const ChoiceScores cut = scores_of(task, *tokenizer, {.batch = 2, .sequence = 40, .pass = losses_by_place});
  CHECK(cut.cut > 0);
  CHECK_THAT(to_text(cut), Contains("too long, with the beginning left out"));
}

TEST_CASE("questions begin with BOS as is asked for, else as the tokenizer's files say") {
  const ChoiceTask task = read_choice_task(kGolden + "own.jsonl", 3);
  const auto tokenizer = Tokenizer::load(kGolden + "model");
  REQUIRE(tokenizer->adds_bos());
  const auto first_of = [&](std::optional<bool> add_bos) {
    std::vector<int32_t> firsts;
    const auto pass = [&](const HostTokens& tokens, std::span<float>) { firsts.push_back(tokens.inputs[0]); };
    score_choices(task, encode_choices(task, *tokenizer, 256, add_bos),
                  {.batch = 1, .sequence = 256, .pass = pass});
    return firsts.at(0);
  };
  CHECK(first_of({}) == *tokenizer->bos_id());
  CHECK(first_of(true) == *tokenizer->bos_id());
  CHECK(first_of(false) == tokenizer->encode(task.items[0].context)[0]);
}

TEST_CASE("answers with log-likelihoods that are not finite are wrong ones, and counted") {
  ChoiceTask task = read_choice_task(kGolden + "own.jsonl", 3);
  for (ChoiceItem& item : task.items) item.gold = 0;
  const auto tokenizer = Tokenizer::load(kGolden + "model");
  for (const float loss : {NAN, INFINITY}) {
    const auto pass = [&](const HostTokens& tokens, std::span<float> losses) {
      for (size_t i = 0; i < losses.size(); ++i) losses[i] = tokens.targets[i] < 0 ? 0.0F : loss;
    };
    const ChoiceScores scores = scores_of(task, *tokenizer, {.batch = 1, .sequence = 256, .pass = pass});
    CHECK(scores.not_finite == 3);
    CHECK(scores.acc.value == 0);
    CHECK_THAT(to_text(scores), Contains("the log-likelihoods of 3 questions are not finite"));
  }
}

TEST_CASE("a choice that the tokenizer joins to the context is refused: no token of it would be scored") {
  const auto tokenizer = Tokenizer::load(kGolden + "model");
  // A token of two characters, parted between context and choice.
  std::string pair;
  for (int32_t id = 256; pair.empty() && id < tokenizer->vocab_size(); ++id) {
    const std::string text = tokenizer->decode({&id, 1});
    if (text.size() == 2 && std::isalpha(text[0]) && std::isalpha(text[1]) &&
        tokenizer->encode(text, {}).size() == 1)
      pair = text;
  }
  REQUIRE(pair.size() == 2);
  const ChoiceTask task{
      .name = "joined",
      .items = {{.context = pair.substr(0, 1), .choices = {pair.substr(1)}, .delimiter = "", .gold = 0}}};
  const auto none = [](const HostTokens&, std::span<float>) {};
  CHECK_THAT(message_of([&] { scores_of(task, *tokenizer, {.sequence = 64, .pass = none}); }),
             Contains("[evaluation] question 1 of joined: the tokenizer merges the choice '" +
                      pair.substr(1) + "' with the end of the context"));
}

TEST_CASE("an item that cannot be answered is refused with file and line") {
  CHECK_THAT(refusal(R"({"query": "q", "choices": [], "gold": 0})"),
             Contains("[evaluation] 'x.jsonl' line 3: there are no choices"));
  CHECK_THAT(refusal(R"({"query": "q", "choices": ["a", "b"], "gold": 2})"),
             Contains("line 3: gold 2 is out of range: there are 2 choices, counted from 0"));
  CHECK_THAT(refusal(R"({"query": "q", "choices": ["a", ""], "gold": 0})"), Contains("a choice is empty"));
  CHECK_THAT(refusal(R"({"query": "q", "choices": ["a"], "gold": -1})"), Contains("gold -1 is out of range"));
  CHECK_THAT(refusal(R"({"query": "q", "choices": ["a"], "gold": "b"})"),
             Contains("expected the index of the right choice"));
  CHECK_THAT(refusal(R"({"query": "q", "gold": 0})"), Contains("\"choices\" is missing"));
  CHECK_THAT(refusal(R"({"question": "q", "choices": {"text": ["a"], "label": ["A"]}, "answerKey": "B"})"),
             Contains("the answerKey \"B\" is not the label of any choice"));
  CHECK_THAT(refusal(R"({"activity_label": "", "ctx_a": "", "ctx_b": "", "endings": ["a"], "label": ""})"),
             Contains("\"label\" is \"\", expected the index"));
  CHECK_THAT(refusal(R"({"text": "x"})"),
             Contains("expected \"query\", \"choices\" and \"gold\", or a line of HellaSwag or ARC"));
  CHECK_THAT(refusal("{"), Contains("line 3: malformed JSON"));
  CHECK_THAT(refusal("["), Contains("line 3: an array begins here, expected a JSON object on each line"));
  const ChoiceItem ai2 = read_choice_item(
      R"({"question": {"stem": "why?", "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]}, "answerKey": "2"})",
      "");
  CHECK(ai2.context == "Question: why?\nAnswer:");
  CHECK(ai2.choices == std::vector<std::string>{"a", "b"});
  CHECK(ai2.gold == 1);
  const TemporaryFolder folder;
  const std::string own = read_file(kGolden + "own.jsonl");
  for (const char* ending : {".zst", ".zstd"}) {
    const std::string path = folder / (std::string("own.jsonl") + ending);
    std::ofstream(path, std::ios::binary) << data::test::zstd(own);
    CHECK(read_choice_task(path).items.size() == read_choice_task(kGolden + "own.jsonl").items.size());
  }
  std::ofstream(folder / "empty.jsonl") << "\n";
  CHECK_THAT(message_of([&] { read_choice_task(folder / "empty.jsonl"); }), Contains("has no items"));
  std::ostringstream out;
  CHECK_THAT(message_of([&] {
               run_eval_command({.model = kGolden + "model",
                                 .tasks = {kGolden + "own.jsonl"},
                                 .max_examples = 1,
                                 .json = folder / "no/scores.json"},
                                out, out);
             }),
             Contains("no/scores.json: No such file or directory"));
  CHECK(out.str().empty());  // before anything is scored
}
