#include "apps/commands/tokenizer_command.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "apps/commands/init_command.h"
#include "apps/config/config.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using Catch::Matchers::Contains;
using ottava::test::message_of;
namespace fs = std::filesystem;

namespace {

const std::string kShipped = OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256";

}  // namespace

TEST_CASE("train writes a tokenizer that loads; text and JSON lines are read alike") {
  TemporaryFolder folder;
  std::string sentence = "the theory of these things is that they thicken\n";
  std::string all, lines;
  for (int i = 0; i < 8; ++i) all += sentence;
  for (int i = 0; i < 8; ++i)
    lines += R"({"body":"the theory of these things is that they thicken"})"
             "\n";
  TokenizerTrainOptions options{
      .sources = {folder.write("a.txt", all)}, .output_folder = folder / "new/tok", .vocab_size = 270};
  std::ostringstream out;
  tokenizer_train(options, out);
  CHECK(out.str().find("(270 tokens)") != std::string::npos);
  auto t = Tokenizer::load(options.output_folder);
  CHECK(t->vocab_size() == 270);
  CHECK(t->encode(" the").size() == 1);

  options.sources = {folder.write("a.jsonl", lines)};
  options.text_key = "body";
  options.output_folder = folder / "json";
  tokenizer_train(options, out);
  CHECK(Tokenizer::load(options.output_folder)->encode(" the").size() == 1);

  options.text_key = "absent";
  options.output_folder = folder / "absent";
  CHECK_THROWS_AS(tokenizer_train(options, out), DataError);
  options.text_key = "body";
  options.output_folder = folder / "never";
  options.vocab_size = 5000;
  CHECK_THROWS_AS(tokenizer_train(options, out), DataError);
  CHECK_FALSE(fs::exists(folder / "never"));
  options.output_folder = folder / "new/tok";
  CHECK_THROWS_WITH(tokenizer_train(options, out),
                    Catch::Contains("new/tok/tokenizer.json already exists, and models") &&
                        Catch::Contains("--overwrite to replace it"));
  options.output_folder = "";
  CHECK_THROWS_WITH(tokenizer_train(options, out), "[tokenizer train] no output folder is given");
  options.output_folder = folder / "a.txt/below";
  options.vocab_size = 270;
  CHECK_THROWS_AS(tokenizer_train(options, out), FileError);
}

TEST_CASE("an output that cannot be written is refused before a text is read") {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  fs::create_directories(folder / "taken/tokenizer_config.json");
  fs::create_symlink(folder / "nowhere", folder / "link");
  const auto refused = [](const std::string& output) {
    std::ostringstream out;
    return message_of([&] {
      tokenizer_train({.sources = {"no-such-text"}, .output_folder = output, .vocab_size = 270}, out);
    });
  };
  for (const std::string& output : {file, file + "/below", file + "/below/it/"})
    CHECK_THAT(refused(output),
               Contains("cannot write into " + output + ": " + file + " is not a folder; choose another"));
  CHECK_THAT(refused(folder / "link/below"), Contains("link is a link to ") && Contains("/nowhere, which"));
  CHECK_THAT(refused(folder / "taken"),
             Contains("taken/tokenizer_config.json: it is a folder; choose another --output"));
  CHECK_THAT(refused(folder / "new/below"), Contains("no-such-text"));
  CHECK_FALSE(fs::exists(folder / "new"));
}

TEST_CASE("a tokenizer that cannot be replaced as a whole stays as it was") {
  TemporaryFolder folder;
  TokenizerTrainOptions options{.sources = {folder.write("a.txt", std::string(200, 'a'))},
                                .output_folder = folder.path(),
                                .vocab_size = 258,
                                .overwrites = true};
  folder.write("tokenizer_config.json", "old");
  fs::create_directory(folder / "tokenizer.json");
  std::ostringstream out;
  CHECK_THROWS_WITH(tokenizer_train(options, out), Contains("tokenizer.json: it is a folder"));
  CHECK(read_file(folder / "tokenizer_config.json") == "old");
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 3);
  CHECK(out.str().empty());
}

TEST_CASE("encode, decode and inspect print what a pipe can use") {
  TemporaryFolder folder;
  std::string text = "A dictionary of English.\n";
  std::ostringstream ids, wrapped, pieces, back, from_file, about;
  tokenizer_encode({.tokenizer = kShipped, .text = text}, ids);
  CHECK(ids.str().back() == '\n');
  tokenizer_decode({.tokenizer = kShipped, .ids = ids.str()}, back);
  CHECK(back.str() == text);
  tokenizer_encode({.tokenizer = kShipped, .file = folder.write("t.txt", text)}, from_file);
  CHECK(from_file.str() == ids.str());
  tokenizer_encode(
      {.tokenizer = kShipped, .text = text, .wrap = TokenizerEncodeOptions::Wrap::as_the_files_say}, wrapped);
  CHECK(wrapped.str() == "2254 " + ids.str());
  tokenizer_encode({.tokenizer = kShipped, .text = "A\n", .print = TokenizerEncodeOptions::Print::pieces},
                   pieces);
  CHECK(pieces.str() == "      65  \"A\"\n      10  \"\\n\"\n");
  tokenizer_inspect({.tokenizer = kShipped, .text_file = folder.write("t.txt", text)}, about);
  CHECK(about.str().find("vocabulary: 2256 tokens, 2 of them added (2 special)\n") != std::string::npos);
  CHECK(about.str().find("bytes per token") != std::string::npos);
  CHECK_THROWS_WITH(tokenizer_decode({.tokenizer = kShipped, .ids = "1, 2 -3"}, back),
                    "[tokenizer decode] '-3' is not a token id");
  CHECK_THROWS_AS(tokenizer_decode({.tokenizer = kShipped, .ids = "9999999999"}, back), DataError);
  CHECK_THROWS_AS(tokenizer_decode({.tokenizer = kShipped, .ids = "2256"}, back), DataError);
  CHECK_THROWS_AS(tokenizer_encode({.tokenizer = kShipped, .file = folder / "absent"}, back), FileError);
}

namespace {

/// Gives a line at a time and takes down what had been written when it was asked for the next.
class LineByLine : public std::streambuf {
 public:
  LineByLine(std::vector<std::string> lines, const std::ostringstream& out)
      : lines_(std::move(lines)), out_(out) {}
  std::vector<std::string> written;

 private:
  int_type underflow() override {
    written.push_back(out_.str());
    if (next_ == lines_.size()) return traits_type::eof();
    std::string& line = lines_[next_++];
    setg(line.data(), line.data(), line.data() + line.size());
    return traits_type::to_int_type(line[0]);
  }
  std::vector<std::string> lines_;
  const std::ostringstream& out_;
  size_t next_ = 0;
};

}  // namespace

TEST_CASE("without text or ids the input is read, and every line of ids is written at once") {
  std::ostringstream expected, ids, text;
  tokenizer_encode({.tokenizer = kShipped, .text = "two\nlines\n"}, expected);
  std::istringstream piped("two\nlines\n");
  tokenizer_encode({.tokenizer = kShipped, .input = &piped}, ids);
  CHECK(ids.str() == expected.str());

  LineByLine lines({"65 66\n", "10,67\n"}, text);
  std::istream input(&lines);
  tokenizer_decode({.tokenizer = kShipped, .input = &input}, text);
  CHECK(text.str() == "AB\nC");
  CHECK(lines.written == std::vector<std::string>{"", "AB", "AB\nC"});

  CHECK_THROWS_WITH(
      tokenizer_encode({.tokenizer = kShipped}, ids),
      "[tokenizer encode] no input is given: write it after the command, give a file, or pipe it in");
  CHECK_THROWS_WITH(tokenizer_encode({.tokenizer = kShipped, .text = "a", .file = "b"}, ids),
                    "[tokenizer encode] both a text and the file b are given: give only one of them");
}

TEST_CASE("init trains as large a tokenizer as the text is enough for, and stops at what is wrong with it") {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += fmt::format("{{\"body\": \"a few words {} and no more\"}}\n", i % 40);
  std::ofstream(folder / "a.jsonl") << lines;
  InitCommand init{.sources = {folder / "a.jsonl"}, .output = folder / "wrong", .minutes = 1};
  std::ostringstream out;
  CHECK_THROWS_WITH(run_init_command(init, out), Contains("has no key \"text\", only \"body\""));
  CHECK(out.str().find("too large for this text") == std::string::npos);

  init.output = folder / "made";
  init.text_key = "body";
  std::string words;
  for (int i = 0; i < 3000; ++i)
    words += fmt::format("{{\"body\": \"word{} and {} of them\"}}\n", i * 7919 % 300, i * 31 % 300);
  std::ofstream(folder / "a.jsonl") << words;
  run_init_command(init, out);
  INFO(out.str());
  const std::string said = out.str(), too_many = "tokens is too large for this text: it gets ";
  const size_t first = said.find(too_many);
  REQUIRE(first != std::string::npos);
  CHECK(said.find(too_many, first + 1) == std::string::npos);
  CHECK(load_config(folder / "made/ottava.yaml").training.text_key == "body");
}

TEST_CASE("init writes nothing for data that training refuses, and says where it cannot write") {
  const TemporaryFolder folder;
  std::string text, chat;
  for (int i = 0; i < 3000; ++i) {
    text += fmt::format("some words {} and no more\n", i % 40);
    chat += fmt::format("{{\"messages\": [{{\"role\": \"user\", \"content\": \"word {}\"}}]}}\n", i);
  }
  std::ofstream(folder / "a.txt") << text;
  std::ofstream(folder / "chat.jsonl") << chat;
  std::ostringstream out;
  InitCommand init{
      .sources = {folder / "chat.jsonl"}, .output = folder / "of chats", .minutes = 1, .tokenizer = kShipped};
  CHECK_THROWS_WITH(run_init_command(init, out), Contains("has no key \"text\", only \"messages\""));
  CHECK_FALSE(std::filesystem::exists(init.output));

  init.sources = {folder / "a.txt"};
  for (const std::string& output : {folder / "a.txt", std::string("/proc/first")}) {
    init.output = output;
    const std::string message = message_of([&] { run_init_command(init, out); });
    INFO(message);
    CHECK(message.starts_with("[init] cannot write into " + output + ": "));
    CHECK_THAT(message, Contains("; choose another --output"));
  }

  // What it says to do next is a command line.
  init.output = folder / "it's made";
  run_init_command(init, out);
  const std::string word = "'" + (folder / "it'\\''s made/ottava.yaml") + "'\n";
  CHECK_THAT(out.str(), Contains("Next: ottava train " + word));
}
