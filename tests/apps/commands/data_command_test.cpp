#include "apps/commands/data_command.h"

#include <fcntl.h>
#include <sys/file.h>

#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "apps/commands/encoded_segment.h"
#include "core/data/corpus.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/io/descriptor.h"
#include "core/io/file.h"
#include "core/threads/parallel_for.h"
#include "tests/core/data/compress.h"
#include "tests/core/data/fixture.h"
#include "tests/core/data/tokenizer/small_tokenizer.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;

namespace {

// BOS is 260, EOS 261; the vocabulary has 262.
std::string write_tokenizer(const TemporaryFolder& folder) {
  folder.write("tokenizer/tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  folder.write("tokenizer/tokenizer.json", ottava::test::SmallTokenizer{}.json());
  return folder / "tokenizer";
}

std::string lines(int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += fmt::format("{{\"text\": \"hello number {} <s>\"}}\n", i);
  return all;
}

}  // namespace

TEST_CASE("training on prepared shards sees the tokens that training on the text sees") {
  TemporaryFolder folder;
  DataPrepareOptions o{.sources = {folder.write("text/a.jsonl", lines(1000))},
                       .tokenizer = write_tokenizer(folder)};
  o.output = folder / "made/shards/";
  o.tokens_per_shard = 5000;
  std::ostringstream out;
  DataPrepareTotals totals = prepare_data(o, out);
  CHECK(totals.documents == 1000);
  CHECK(totals.shards == 4);
  CHECK_HAS(out.str(), "tokens-00000.bin: ");
  CHECK_HAS(out.str(), fmt::format("4 shards, 1000 documents, {} tokens", totals.tokens));
  CHECK_HAS(out.str(), " bytes per token); each document begins with BOS and ends with EOS\n");

  LoaderOptions text{.sources = {folder / "text"},
                     .encoder = make_text_encoder(Tokenizer::load(o.tokenizer), {}),
                     .seq_len = 100};
  text.order = Order::sequential;
  LoaderOptions shards = text;
  shards.sources = {o.output};
  int64_t samples = totals.tokens / 101;
  std::vector<int32_t> x(100), y(100), starts(100), x2(100), y2(100), starts2(100);
  TokenLoader a(text), b(shards);
  for (int64_t s = 0; s < samples; ++s) {
    a.read(s, 1, {x.data(), y.data(), starts.data()});
    b.read(s, 1, {x2.data(), y2.data(), starts2.data()});
    REQUIRE((x == x2 && y == y2 && starts == starts2));
  }
  // Text that spells a special token is text.
  std::vector<int32_t> ids;
  text.encoder.encode("<s>", ids);
  CHECK(ids == std::vector<int32_t>{'<', 's', '>'});

  std::ostringstream seen;
  inspect_data({.sources = {o.output},
                .tokenizer = o.tokenizer,
                .seq_len = 100,
                .verify = DataInspectOptions::Verify::contents},
               seen);
  CHECK_HAS(seen.str(), "tokens-00003.bin: ottava shard, ");
  CHECK_HAS(seen.str(), "vocabulary 262, tokenizer ");
  CHECK_HAS(seen.str(), "checksum good");
  CHECK_HAS(seen.str(), "document 0 (");
  CHECK_HAS(seen.str(), "<s>hello number 0 <s></s>");
  CHECK_HAS(seen.str(),
            fmt::format("first block: 1000 documents, {} tokens, {} windows", totals.tokens, samples));
  // Without a tokenizer ids are shown as they are; with another one they would be read as something else.
  seen.str("");
  inspect_data({.sources = {o.output}, .documents = 1}, seen);
  CHECK_HAS(seen.str(), " ids): 260 ");
  DataInspectOptions other{.sources = {o.output},
                           .tokenizer = OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256"};
  CHECK_HAS(message_of<DataError>([&] { inspect_data(other, seen); }), "was prepared with tokenizer ");
}

TEST_CASE("bad records end a preparation, or are left out and counted as by training") {
  TemporaryFolder folder;
  const std::string good = R"({"text": "hello"})";
  DataPrepareOptions o{
      .sources = {folder.write("a.jsonl", good + "\n{\"text\": 1}\n" + good + "\nno JSON\n")},
      .tokenizer = write_tokenizer(folder),
      .output = folder / "shards"};
  std::ostringstream out;
  CHECK_HAS(message_of<DataError>([&] { prepare_data(o, out); }),
            "a.jsonl' line 2, column 12: the value of \"text\" is not a string");
  CHECK_FALSE(std::filesystem::exists(o.output));
  o.bad_records = "skip";
  const DataPrepareTotals totals = prepare_data(o, out);
  CHECK(totals.documents == 2);
  CHECK(totals.bad_records == 2);
  CHECK_HAS(out.str(),
            "2 bad records left out (--bad-records skip), one of them '" + folder / "a.jsonl' line ");
  o.sources = {folder.write("b.jsonl", "no JSON\n")};
  o.output = folder / "none";
  CHECK_HAS(
      message_of<DataError>([&] { prepare_data(o, out); }),
      "8 bytes, 0 documents; 1 bad record left out (--bad-records skip): '" + folder / "b.jsonl' line 1");
  o.sources = {folder.write("c.jsonl", good + "\nno JSON\n")};
  o.tokens_per_shard = 1;
  CHECK(prepare_data(o, out).shards == 1);  // none for what is left out
  o.bad_records = "leave";
  CHECK_HAS(message_of<ConfigError>([&] { prepare_data(o, out); }),
            "--bad-records is 'leave', expected error or skip");
}

TEST_CASE("what an interrupted preparation left is removed by the next, which refuses while another writes") {
  TemporaryFolder folder;
  const std::string left = folder.write("shards.incomplete-aaaaaa/tokens-00000.bin", "x"),
                    held = folder.write("shards.incomplete-bbbbbb/tokens-00000.bin", "x"),
                    other = folder.write("shards-2.incomplete-aaaaaa/tokens-00000.bin", "x"),
                    own = folder.write("shards.incomplete-series/notes.txt", "x"),
                    hidden = folder.write("shards.incomplete-secret/.notes", "x");
  Descriptor lock(::open((folder / "shards.incomplete-bbbbbb").c_str(), O_RDONLY | O_DIRECTORY));
  REQUIRE(::flock(lock, LOCK_EX | LOCK_NB) == 0);
  std::ostringstream out;
  const DataPrepareOptions options{.sources = {folder.write("a.jsonl", lines(10))},
                                   .tokenizer = write_tokenizer(folder),
                                   .output = folder / "shards"};
  const std::string refused = message_of<ConfigError>([&] { prepare_data(options, out); });
  CHECK_HAS(refused, "another process is preparing '" + options.output + "'");
  CHECK_HAS(refused, "shards.incomplete-bbbbbb");
  CHECK(std::filesystem::exists(held));
  lock.close();
  prepare_data(options, out);
  CHECK_HAS(out.str(), "Removing " + folder / "shards.incomplete-aaaaaa" + ", which was not finished\n");
  CHECK_FALSE(std::filesystem::exists(std::filesystem::path(left).parent_path()));
  CHECK_FALSE(std::filesystem::exists(held));
  CHECK(std::filesystem::exists(other));
  CHECK(std::filesystem::exists(own));
  CHECK(std::filesystem::exists(hidden));
  CHECK(std::filesystem::exists(folder / "shards/tokens-00000.bin"));
}

TEST_CASE("bytes per token are those of the text, not of the JSON lines that hold it") {
  TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl", R"({"id": 1234567, "text": "caf\u00e9 \u65e5"})"
                                                   "\n"
                                                   R"({"text": "\n"})"
                                                   "\n");
  std::ostringstream prepared, inspected;
  const DataPrepareTotals totals = prepare_data(
      {.sources = {path}, .tokenizer = write_tokenizer(folder), .output = folder / "shards"}, prepared);
  CHECK(totals.bytes == 10);
  const std::string ratio = fmt::format("{:.3f} bytes per token", 10.0 / static_cast<double>(totals.tokens));
  CHECK_HAS(prepared.str(), " from 10 bytes of text (" + ratio + ")");
  inspect_data({.sources = {path}, .tokenizer = folder / "tokenizer", .seq_len = 2}, inspected);
  CHECK_HAS(inspected.str(), ratio);
}

TEST_CASE("inspect tells all that is wrong with records, and shows what is left") {
  TemporaryFolder folder;
  const std::string path = folder.write(
      "a.jsonl", "{\n" + lines(30) + "{\"body\": 1}\n{\"text\": \"not UTF-8: \xff\"}\n{\"text\": \"\"}\n");
  for (const bool has_tokenizer : {false, true}) {
    std::ostringstream out;
    inspect_data(
        {.sources = {path}, .tokenizer = has_tokenizer ? write_tokenizer(folder) : "", .seq_len = 20}, out);
    INFO(out.str());
    CHECK_HAS(out.str(),
              "data check: 34 documents in 0.0 MB (all of it), 2 bad records, 1 with bytes that are "
              "not UTF-8, the first '" +
                  path + "' line 33\n");
    CHECK_HAS(out.str(), "the first bad record, where training ends unless training.bad_records is skip: '" +
                             path + "' line 1, column ");
    CHECK_HAS(out.str(), "document 0 (");
    CHECK_HAS(out.str(), "hello number 0 <s>");
    CHECK(has(out.str(), "first block: 31 documents, ") == has_tokenizer);
    CHECK(has(out.str(), " bytes per token; ") == has_tokenizer);
  }
}

TEST_CASE("inspect says that it counts only the beginning of a large compressed file, which is one block") {
  TemporaryFolder folder;
  const std::string tokenizer = write_tokenizer(folder);
  for (const int count : {100, 260'000}) {
    const std::string path = folder.write("a.jsonl.gz", ottava::data::test::gzip(lines(count)));
    std::ostringstream out;
    inspect_data({.sources = {path}, .tokenizer = tokenizer, .documents = 0}, out);
    INFO(out.str());
    CHECK_HAS(out.str(), ", 1 block of about 4 MiB");
    CHECK_HAS(out.str(), fmt::format("data check: {} documents in ", count));
    CHECK(has(out.str(), "\nfirst block: 100 documents, ") == (count == 100));
    CHECK(has(out.str(), "\nbeginning of the first block: ") == (count > 100));
  }
}

TEST_CASE("inspect shows text and its beginning without a tokenizer too") {
  TemporaryFolder folder;
  std::string path =
      folder.write("a.txt", "first line\nsecond \u20ac" + std::string(300, 'x') + "<|endoftext|>other");
  std::ostringstream out;
  inspect_data({.sources = {path}, .documents = 1}, out);
  CHECK_HAS(out.str(), "1 file, 339 bytes, 1 block of about 4 MiB");
  CHECK_HAS(out.str(), "a.txt: text, 339 bytes");
  CHECK_HAS(out.str(), "document 0 (321 bytes): first line\\nsecond \u20acxxx");
  CHECK_FALSE(has(out.str(), "document 1"));
  CHECK_HAS(out.str(),
            "data check: 2 documents in 0.0 MB (all of it), 0 bad records, 0 with bytes that are not");
  CHECK_HAS(out.str(), "to count tokens and training windows, add --tokenizer\n");
}

TEST_CASE("a shard whose tokens changed is found by its checksum") {
  TemporaryFolder folder;
  DataPrepareOptions o{.sources = {folder.write("a.jsonl", lines(10))},
                       .tokenizer = write_tokenizer(folder),
                       .output = folder / "out"};
  std::ostringstream out;
  prepare_data(o, out);
  std::string shard = read_file(folder / "out/tokens-00000.bin");
  shard[150] ^= 1;
  folder.write("out/tokens-00000.bin", shard);
  DataInspectOptions inspect{.sources = {folder / "out"}};
  inspect_data(inspect, out);
  inspect.verify = DataInspectOptions::Verify::contents;
  CHECK_HAS(message_of<FileError>([&] { inspect_data(inspect, out); }),
            "is damaged: its tokens have checksum");
}

TEST_CASE("prepare writes everything or nothing, and over nothing") {
  TemporaryFolder folder;
  std::ostringstream out;
  std::string tokenizer = write_tokenizer(folder), good = folder.write("good.jsonl", lines(10));
  DataPrepareOptions o{.sources = {good}, .tokenizer = tokenizer, .output = folder / "out"};
  auto entries = [&] {
    size_t n = 0;
    for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(folder.path())) ++n;
    return n;
  };
  size_t before = entries();
  o.sources.push_back(folder.write("tokenizer/bad.jsonl", lines(5) + "{\n"));
  CHECK_HAS(message_of<DataError>([&] { prepare_data(o, out); }),
            "bad.jsonl' line 6, column 2: syntax error while parsing object key");
  CHECK(entries() == before);
  o.sources = {folder.write("tokenizer/blank.txt", "  \n")};
  CHECK_HAS(message_of<DataError>([&] { prepare_data(o, out); }),
            "the sources contain no text: 1 file with 3 bytes");
  CHECK(entries() == before);
  o.sources = {good};
  prepare_data(o, out);
  CHECK(entries() == before + 1);
  CHECK_HAS(message_of<ConfigError>([&] { prepare_data(o, out); }), "exists and is not an empty folder");
  o.sources = {folder / "out"};
  o.output = folder / "again";
  CHECK_HAS(message_of<DataError>([&] { prepare_data(o, out); }), "is already tokenized (ottava shard)");
  o.sources = {good};
  o.output = good + "/below";
  CHECK_HAS(message_of<FileError>([&] { prepare_data(o, out); }), "cannot create a folder beside");
  o.output = "";
  CHECK_HAS(message_of<ConfigError>([&] { prepare_data(o, out); }), "no output folder");
  CHECK(entries() == before + 1);
}

TEST_CASE("files are read as what --format says they are") {
  TemporaryFolder folder;
  std::string ids;
  for (int i = 0; i < 50; ++i) put(ids, static_cast<uint16_t>(i));
  std::ostringstream seen;
  inspect_data({.sources = {folder.write("train.bin", ids)}, .format = "tokens_u16"}, seen);
  CHECK_HAS(seen.str(), "train.bin: u16 tokens, 100 bytes, 50 tokens of 2 bytes");
  CHECK_HAS(seen.str(), "data check: 1 piece in 0.0 MB (all of it)");
  CHECK_HAS(seen.str(), "piece 0 (50 ids): 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 ...\n");

  // An object per line, taken as text.
  const DataPrepareOptions as_text{.sources = {folder.write("a.jsonl", lines(3))},
                                   .tokenizer = write_tokenizer(folder),
                                   .output = folder / "shards",
                                   .format = "text"};
  std::ostringstream out;
  CHECK(prepare_data(as_text, out).documents == 1);
  CHECK_HAS(message_of<ConfigError>(
                [&] { inspect_data({.sources = {folder / "a.jsonl"}, .format = "json"}, out); }),
            "unknown format 'json': expected auto, text, json_lines, tokens_u16, tokens_u32");
}

TEST_CASE("of documents that several threads refuse, the first is named, however late") {
  TemporaryFolder folder;
  const Corpus corpus(find_data_files({folder.write("a.jsonl", lines(40))}), {});
  TextEncoder encoder = byte_encoder();
  encoder.encode = [](std::string_view text, std::vector<int32_t>&) {
    if (has(text, " 0 ")) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    throw DataError("test", "refused");
  };
  Segment segment;
  BlockReader(corpus, 0).next(segment);
  const DocumentEncoder documents(corpus, encoder, "text");
  const int before = parallel_threads();
  set_parallel_threads(4);
  CHECK_HAS(message_of<DataError>([&] { encoded_segment(documents, segment); }), "document at byte 0:");
  set_parallel_threads(before);
}
