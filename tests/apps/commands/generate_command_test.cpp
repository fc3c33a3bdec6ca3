#include "apps/commands/generate_command.h"

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/apps/commands/workplace.h"

// Several prompts in one call of generate.

using namespace ottava;
using namespace ottava::test;

namespace {

/// Looks at a file at the moment in which a text begins.
struct AtText : std::stringbuf {
  AtText(std::string at, std::string file) : text(std::move(at)), path(std::move(file)) {}
  int sync() override {
    if (lines < 0 && has(str(), text)) lines = std::ranges::count(read_file(path), '\n');
    return 0;
  }
  std::string text, path;
  int64_t lines = -1;
};

}  // namespace

TEST_CASE("a text is in the file of generate before the next one begins") {
  Workplace place;
  REQUIRE(place.run("train tiny.yaml").exit_code == 0);
  place.write("texts.jsonl", "of\nan\nearlier\nrun\n");
  AtText at("==> prompt 2 of 2 <==\n", place / "texts.jsonl");
  std::ostream out(&at);
  std::ostringstream notes;
  run_generate_command({.checkpoint = place / "out",
                        .prompts = {"A cat", "B"},
                        .max_tokens = 4,
                        .json = place / "texts.jsonl",
                        .device = "cpu"},
                       out, notes);
  CHECK(at.lines == 1);
  CHECK(std::ranges::count(read_file(place / "texts.jsonl"), '\n') == 2);
}

TEST_CASE("several prompts are continued one after the other, each as it is alone") {
  Workplace place;
  const auto generated = [&](const std::string& arguments, const char* notes = "/dev/null") {
    return place
        .run_shell(OTTAVA " generate --checkpoint out --max-tokens 12 --device cpu " + arguments + " 2>" +
                   notes)
        .output;
  };
  REQUIRE(place.run("train tiny.yaml").exit_code == 0);
  const std::vector<std::string> prompts{"A cat", "Some dogs, and birds", "B"};
  std::string each, expected;
  std::vector<std::string> alone;
  for (const std::string& prompt : prompts) {
    const std::string header = "==> prompt " + std::to_string(alone.size() + 1) + " of 3 <==\n";
    each += "--prompt '" + prompt + "' ";
    alone.push_back(generated("--prompt '" + prompt + "'"));
    CHECK(alone.back().starts_with(prompt));
    expected += (alone.size() > 1 ? "\n" : "") + header + alone.back();
  }
  CHECK(generated(each + "--json texts.jsonl") == expected);
  CHECK_THAT(generated(each, "&1"),
             Catch::Matchers::Matches("[^]*36 tokens after 3 prompts of [0-9]+ in all, in [^]*"));

  std::istringstream lines(read_file(place / "texts.jsonl"));
  std::string line;
  for (size_t i = 0; i < prompts.size(); ++i) {
    REQUIRE(std::getline(lines, line));
    const Json text = Json::parse(line, "texts.jsonl");
    CHECK(text.at("prompt", "").as_string("") == prompts[i]);
    CHECK(text.at("sample", "").as_integer("") == 1);
    CHECK(text.at("tokens", "").as_integer("") == 12);
    CHECK(text.at("finish_reason", "").as_string("") == "length");
    const std::string added = alone[i].substr(prompts[i].size());
    CHECK(text.at("text", "").dump() == Json(added.substr(0, added.size() - 1)).dump());
  }
  CHECK_FALSE(std::getline(lines, line));

  // From files, behind those of the command line.
  place.write("prompts.txt", "Some dogs, and birds\r\n\n  \nB");
  CHECK(generated("--prompt 'A cat' --prompts prompts.txt") == expected);
  place.write("prompts.jsonl",
              "{\"is\": \"A cat\"}\n{\"is\": \"Some dogs, and birds\"}\n\n{\"is\": \"B\"}\n");
  CHECK(generated("--prompts prompts.jsonl --text-key is") == expected);
  place.write("blank.jsonl",
              "{\"text\": \"\"}\n{\"text\": \"A cat\"}\n{\"text\": \" \\n\"}\n"
              "{\"text\": \"Some dogs, and birds\"}\n{\"text\": \"B\"}\n");
  CHECK(generated("--prompts blank.jsonl") == expected);
  for (const char* file : {"blank.jsonl", "prompts.txt"})
    CHECK(has(generated(std::string("--prompts ") + file, "&1"),
              "left out of '" + std::string(file) + "': 2 lines without a visible character\n"));
  place.write("both.jsonl", "{\"text\": \"two\\nlines\"}\n");
  CHECK(generated("--prompts both.jsonl").starts_with("two\nlines"));

  const std::string samples = generated("--prompt 'A cat' --prompt B --samples 2 --json texts.jsonl");
  CHECK(samples.starts_with("==> prompt 1 of 2, sample 1 of 2 <==\n" + alone[0]));
  CHECK(has(samples, "\n==> prompt 1 of 2, sample 2 of 2 <==\nA cat"));
  CHECK(has(samples, "\n==> prompt 2 of 2, sample 1 of 2 <==\n" + alone[2]));
  CHECK(std::ranges::count(read_file(place / "texts.jsonl"), '\n') == 4);
  const std::string added = alone[0].substr(prompts[0].size());
  const size_t letter = added.find_first_of("abcdefghijklmnopqrstuvwxyz");
  REQUIRE(letter != std::string::npos);
  generated("--prompt 'A cat' --json texts.jsonl --stop " + added.substr(letter, 1));
  CHECK(has(read_file(place / "texts.jsonl"), "\"finish_reason\":\"stop\""));

  place.write("none.txt", " \n\n");
  std::filesystem::create_directory(place / "many");
  place.write("many/b.jsonl", "{\"text\": \"A cat\"}\n");
  const std::vector<std::pair<std::string, std::string>> refusals = {
      {"--prompt A cat", "cat"},
      {"--prompt A --prompt-file none.txt", "--prompt-file none.txt is given beside --prompt or --prompts"},
      {"--prompt A --text-key is", "--text-key is is given without --prompts"},
      {"--chat --text-key is", "--text-key and --json cannot be combined with --chat"},
      {"--prompts none.txt", "there is no prompt in 'none.txt'"},
      {"--prompts none.txt --json none.txt", "cannot write none.txt: this command reads it"},
      {"--prompts 'n*.txt' --json none.txt", "cannot write none.txt: this command reads it"},
      {"--prompts many --json many/b.jsonl", "cannot write many/b.jsonl: this command reads it"},
      {"--prompts many --json many/../many/new.jsonl",
       "cannot write many/../many/new.jsonl: a later run may read it"},
      {"--prompts prompts.jsonl", "'prompts.jsonl' line 1, column 16: the object has no key \"text\""},
      {"--chat --prompt A --prompt B", "--chat takes one --prompt, got 2"},
      {"--chat --json texts.jsonl", "--prompts, --text-key and --json cannot be combined with --chat"}};
  for (const auto& [arguments, message] : refusals) {
    INFO(arguments);
    CHECK_THAT(generated(arguments, "&1"), Catch::Contains(message));
  }
  // Before a model is looked for.
  CHECK_THAT(place.run("generate --checkpoint nowhere --prompt A --prompt-file none.txt").output,
             Catch::Contains("--prompt-file none.txt is given beside --prompt or --prompts"));
}
