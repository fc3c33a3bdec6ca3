#include "core/data/corpus.h"

#include <fstream>
#include <optional>

#include "core/philox.h"
#include "tests/core/data/compress.h"
#include "tests/core/data/fixture.h"
#include "tests/support/skip.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;

namespace {

std::vector<std::string> documents(const Corpus& corpus, int64_t block) {
  std::vector<std::string> list;
  Segment segment;
  for (BlockReader reader(corpus, block); !reader.finished();) {
    reader.next(segment);
    for (const Document& d : segment.documents) {
      list.push_back(
          segment.bytes.substr(static_cast<size_t>(d.begin), static_cast<size_t>(d.end - d.begin)));
    }
  }
  return list;
}

std::vector<std::string> all_documents(const Corpus& corpus) {
  std::vector<std::string> list;
  for (int64_t b = 0; b < corpus.blocks(); ++b) {
    for (std::string& d : documents(corpus, b)) list.push_back(std::move(d));
  }
  return list;
}

// Words, lines, blank lines and separators in random proportions.
std::string random_text(uint64_t seed, int64_t words, uint64_t separator_every) {
  PhiloxStream random{.seed = seed};
  std::string text;
  for (uint64_t i = 0; i < static_cast<uint64_t>(words); ++i) {
    text += fmt::format("w{}", i);
    uint64_t kind = random.below(20, 2 * i);
    if (separator_every && random.below(separator_every, 2 * i + 1) == 0)
      text += "\n<|endoftext|>\n";
    else if (i + 1 < static_cast<uint64_t>(words))
      text += kind == 0 ? "\n\n" : kind < 4 ? "\n" : " ";
  }
  return text;
}

// Bytes that this process has read so far; nothing where Linux does not say.
std::optional<double> bytes_read() {
  std::ifstream statistics("/proc/self/io");
  std::string name;
  double bytes = 0;
  if (statistics >> name >> bytes && name == "rchar:") return bytes;
  return {};
}

}  // namespace

TEST_CASE("blocks of any size together hold every document once, in order") {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 500; ++i)
    lines += fmt::format("{{\"text\": \"{} {}\"}}\n", i, std::string(static_cast<size_t>(i % 90), 'y'));
  folder.write("a.txt", random_text(1, 4000, 50));
  folder.write("b.jsonl", lines);
  folder.write("c.txt", "tiny");
  folder.write("d.jsonl", lines.substr(0, lines.size() - 1));
  auto files = find_data_files({folder.path()});
  std::vector<std::string> expected =
      all_documents(Corpus(files, {.block_bytes = 1 << 30, .max_text_bytes = 1 << 30}));
  CHECK(expected.size() > 1000);
  for (int64_t block_bytes : {100, 777, 5000, 20000, 100000}) {
    Corpus corpus(files, {.block_bytes = block_bytes, .max_text_bytes = 1 << 30});
    CHECK(corpus.blocks() == std::max<int64_t>(1, (corpus.bytes() + block_bytes / 2) / block_bytes));
    CHECK((all_documents(corpus) == expected));
  }
}

TEST_CASE("text without separators is cut near where blocks end and every byte is in one block") {
  TemporaryFolder folder;
  std::string text = random_text(2, 300000, 0);
  auto files = find_data_files({folder.write("a.txt", text)});
  Corpus corpus(files, {.block_bytes = 400000, .max_text_bytes = 500});
  CHECK(corpus.blocks() > 4);
  std::string joined;
  for (int64_t b = 0; b < corpus.blocks(); ++b) {
    size_t before = joined.size();
    for (const std::string& d : documents(corpus, b)) {
      REQUIRE(d.size() <= 500);
      joined += d;
    }
    CHECK(joined.size() - before > 200000);
    CHECK(joined.size() - before < 700000);
  }
  CHECK((joined == text));
}

TEST_CASE("compressed files hold the documents of what they compress") {
  TemporaryFolder folder;
  std::string text = random_text(3, 30000, 300), lines;
  for (int i = 0; i < 5000; ++i) lines += fmt::format("{{\"text\": \"{}\"}}\n", i);
  auto plain = find_data_files({folder.write("a.txt", text), folder.write("b.jsonl", lines)});
  auto packed =
      find_data_files({folder.write("a.txt.gz", gzip(text)), folder.write("b.jsonl.zst", zstd(lines))});
  BlockSizes sizes{.block_bytes = 3000, .max_text_bytes = 1 << 30};
  Corpus corpus(packed, sizes);
  CHECK((all_documents(corpus) == all_documents(Corpus(plain, sizes))));
  // One block per long compressed file, of many segments.
  CHECK(corpus.blocks() == 2);
  Segment segment;
  int64_t segments = 0;
  for (BlockReader reader(corpus, 1); !reader.finished(); ++segments) {
    reader.next(segment);
    CHECK(segment.documents.size() > 0);
    CHECK(segment.bytes.size() < 4 * 3000);
  }
  CHECK(segments > 5);
}

TEST_CASE("a block that lies within a long line looks for its end once") {
  if (!bytes_read()) return ottava::test::skip("Linux does not say what this process reads");
  TemporaryFolder folder;
  const std::string first = "{\"text\": \"first\"}", last = "{\"text\": \"last\"}",
                    line = "{\"text\": \"" + std::string(4 << 20, 'y') + "\"}";
  folder.write("a.jsonl", first + "\n" + line + "\n" + last + "\n");
  const Corpus corpus(find_data_files({folder / "a.jsonl"}), {.block_bytes = 128 << 10});
  REQUIRE(corpus.blocks() == 32);
  const double before = *bytes_read();
  CHECK((all_documents(corpus) == std::vector<std::string>{first, line, last}));
  // Of each of them half of the line, in the mean; for both of its ends it would be all of it.
  CHECK(*bytes_read() - before < 0.75 * 32 * static_cast<double>(line.size()));
}

TEST_CASE("small files share blocks") {
  TemporaryFolder folder;
  for (int i = 0; i < 100; ++i) folder.write(fmt::format("{:03}.txt", i), fmt::format("file number {}", i));
  for (int i = 0; i < 20; ++i)
    folder.write(fmt::format("z{:03}.txt.gz", i), gzip(fmt::format("packed {}", i)));
  Corpus corpus(find_data_files({folder.path()}), {.block_bytes = 700, .max_text_bytes = 1000});
  CHECK(corpus.blocks() < 6);
  CHECK((all_documents(corpus).size() == 120));
}

TEST_CASE("a byte order mark is no text") {
  TemporaryFolder folder;
  auto files = find_data_files({folder.write("a.jsonl", "\xef\xbb\xbf{\"text\": \"x\"}\n"),
                                folder.write("b.txt", "\xef\xbb\xbfhello")});
  CHECK((all_documents(Corpus(files, {})) == std::vector<std::string>{"{\"text\": \"x\"}", "hello"}));
}

TEST_CASE("lines are counted for errors, in compressed files too") {
  TemporaryFolder folder;
  std::string lines = "1\n22\n333\n";
  Corpus corpus(find_data_files({folder.write("a.jsonl", lines), folder.write("a.jsonl.gz", gzip(lines))}),
                {});
  for (int file : {0, 1}) {
    CHECK(corpus.line_number(file, 0) == 1);
    CHECK(corpus.line_number(file, 2) == 2);
    CHECK(corpus.line_number(file, 5) == 3);
  }
}

TEST_CASE("block sizes grow with the sequence") {
  CHECK(block_sizes(2048).block_bytes == 4 << 20);
  CHECK(block_sizes(131072).block_bytes == 64 << 20);
  CHECK(block_sizes(1).max_text_bytes == 4096);
  CHECK(block_sizes(8192).max_text_bytes == 65536);
}
