#include "core/data/text_documents.h"

#include "tests/core/data/fixture.h"

using namespace ottava::data;
using namespace ottava::data::test;

namespace {

std::vector<std::string> split(Format format, std::string_view bytes, size_t limit = 1000) {
  std::vector<std::string> documents;
  split_documents(format, bytes, limit, [&](size_t begin, size_t end) {
    REQUIRE(begin < end);
    REQUIRE(end <= bytes.size());
    documents.emplace_back(bytes.substr(begin, end - begin));
  });
  return documents;
}

using List = std::vector<std::string>;

}  // namespace

TEST_CASE("plain text: separators part documents, blank lines do not") {
  CHECK(split(Format::text, "one\n\ntwo\n") == List{"one\n\ntwo\n"});
  CHECK(split(Format::text, "one\n<|endoftext|>\n\ntwo\n<|endoftext|>\nthree\n") ==
        List{"one", "two", "three\n"});
  CHECK(split(Format::text, "<|endoftext|>a<|endoftext|><|endoftext|> \n <|endoftext|>b<|endoftext|>") ==
        List{"a", "b"});
  CHECK(split(Format::text, "").empty());
  CHECK(split(Format::text, " \n\t\n").empty());
  CHECK(split(Format::text, "<|endoftext|>\r\n\r\n").empty());
}

TEST_CASE(
    "plain text without separators is cut after blank lines, else lines, words, characters, and nothing is "
    "lost") {
  CHECK(split(Format::text, "aaaa\n\nbbbb\n\ncccc", 14) == List{"aaaa\n\nbbbb\n\n", "cccc"});
  CHECK(split(Format::text, "aaaa\nbbbb\ncccc", 11) == List{"aaaa\nbbbb\n", "cccc"});
  CHECK(split(Format::text, "aaaa bbbb cccc", 11) == List{"aaaa bbbb ", "cccc"});
  // A break in the first half would make pieces of any size; the limit is kept instead.
  CHECK(split(Format::text, "a bbbbbbbbbbbbbbbbb", 10) == List{"a bbbbbbbb", "bbbbbbbbb"});
  std::string wide;
  for (int i = 0; i < 50; ++i) wide += "\u20ac";
  for (size_t limit : {1, 2, 3, 4, 10, 100}) {
    std::string joined;
    for (const std::string& piece : split(Format::text, wide, limit)) {
      CHECK(piece.size() % 3 == 0);
      joined += piece;
    }
    CHECK(joined == wide);
  }
  // Continuation bytes without a character: cut all the same.
  CHECK(split(Format::text, std::string(10, '\x80'), 1).size() > 1);
}

TEST_CASE("between separators documents are whole, however long") {
  const std::string book = "chapter\n\none\n\ntwo";
  CHECK(split(Format::text, book + "<|endoftext|>" + book, 10) == List{book, book});
  CHECK(split(Format::text, book + "<|endoftext|>", 10) == List{book});
  CHECK(split(Format::text, book, 10).size() > 1);
}

TEST_CASE("JSON lines: one document per line that is not blank") {
  CHECK(split(Format::json_lines, "{a}\n\n  \r\n{b}\r\n{c}", 1) == List{"{a}", "{b}\r", "{c}"});
}

TEST_CASE("cuts fall after the next line of JSON lines, and wait for it") {
  CHECK(find_cut(Format::json_lines, "ab\ncd\n", false) == 3);
  CHECK(find_cut(Format::json_lines, "abcd", false) == std::nullopt);
  CHECK(find_cut(Format::json_lines, "abcd", true) == 4);
  CHECK(find_cut(Format::json_lines, "", true) == 0);
}

TEST_CASE("cuts of text prefer a separator within 256 KiB to any other break") {
  CHECK(find_cut(Format::text, "short", false) == std::nullopt);
  CHECK(find_cut(Format::text, "one two<|endoftext|>\n\nthree", true) == 22);
  CHECK(find_cut(Format::text, "one two\n\nthree", true) == 14);  // the end of the file is near enough
  CHECK(find_cut(Format::text, "", true) == 0);
  std::string filler(300000, 'x');
  for (bool ended : {false, true}) {
    CHECK(find_cut(Format::text, "one\ntwo\n\nthree four" + filler, ended) == 9);
    CHECK(find_cut(Format::text, "one two\nthree" + filler, ended) == 8);
    CHECK(find_cut(Format::text, "one two" + filler, ended) == 4);
    CHECK(find_cut(Format::text, "\x82\xacnext" + filler, ended) == 2);
    CHECK(find_cut(Format::text, filler + "\n", ended) == 0);
  }
  std::string far = std::string(200000, ' ') + "<|endoftext|>x";
  CHECK(find_cut(Format::text, far + filler, false) == far.size() - 1);
  std::string farther = "a b" + std::string(300000, 'x') + "<|endoftext|>x";
  CHECK(find_cut(Format::text, farther, true) == 2);
  // What lies beyond the search does not count, seen or not.
  CHECK(find_cut(Format::text, farther.substr(0, 262144), false) == 2);
}
