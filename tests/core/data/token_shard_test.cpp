#include "core/data/token_shard.h"

#include <cstring>

#include "core/data/corpus.h"
#include "core/data/packing.h"
#include "core/io/file.h"
#include "tests/core/data/shards.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;

namespace {

TextEncoder vocabulary(int32_t size) {
  TextEncoder encoder = byte_encoder();
  encoder.vocab_size = size;
  return encoder;
}

// Documents that start with `first` and are one to nine tokens long.
Tokens make_documents(int count, int32_t first, int32_t limit) {
  Tokens documents;
  for (int d = 0; d < count; ++d) {
    documents.push_back({first});
    for (int i = 0; i < d * 7 % 9; ++i) documents.back().push_back((d * 131 + i) % limit);
  }
  return documents;
}

Tokens read_documents(const std::string& path, int32_t vocab_size, int64_t block_bytes) {
  Corpus corpus(find_data_files({path}), {.block_bytes = block_bytes, .max_text_bytes = 400});
  DocumentEncoder encoder(corpus, vocabulary(vocab_size), "text");
  Tokens documents;
  Segment segment;
  std::string scratch;
  for (int64_t b = 0; b < corpus.blocks(); ++b) {
    for (BlockReader reader(corpus, b); !reader.finished();) {
      reader.next(segment);
      for (const Document& d : segment.documents)
        encoder.append(segment, d, documents.emplace_back(), scratch);
    }
  }
  return documents;
}

template <class T>
void overwrite(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace

TEST_CASE("bare ids of another width or behind a header are not taken for ids") {
  TemporaryFolder folder;
  const auto open = [&](const std::string& bytes, Format format) {
    return TokenShard::open(folder.write("ids.bin", bytes), format)->tokens();
  };
  const auto problem = [&](const std::string& bytes, Format format) {
    return message_of<FileError>([&] { open(bytes, format); });
  };
  std::string u16, u32, u64, zeros(400, '\0');
  // More than are looked at, of a vocabulary that needs more than 16 bits.
  for (int i = 0; i < 40000; ++i) {
    const uint32_t id = i * 2654435761u % 200000u;
    put(u16, static_cast<uint16_t>(id % 50257));
    put(u32, id);
    put(u64, uint64_t{id});
  }
  CHECK(open(u16, Format::tokens_u16) == 40000);
  CHECK(open(u32, Format::tokens_u32) == 40000);
  CHECK_HAS(problem(u32, Format::tokens_u16), "ids.bin' looks like tokens of 4 bytes, not 2");
  CHECK_HAS(problem(u32, Format::tokens_u16), "tokens_u32?");
  CHECK_HAS(problem("x", Format::tokens_u16), "has 1 byte, no whole number of tokens of 2 bytes");
  CHECK_HAS(problem(u64, Format::tokens_u16), "looks like tokens of 4 bytes");
  CHECK_HAS(problem(u64, Format::tokens_u32), "looks like tokens of 8 bytes, not 4");
  CHECK_HAS(problem(u64, Format::tokens_u32), "save them as 32-bit ids");
  // Too few to tell, or no ids of text.
  CHECK(open(u32.substr(0, 40), Format::tokens_u16) == 20);
  CHECK(open(zeros, Format::tokens_u16) == 200);
  std::string four_letters;  // and a separator at every 512th position
  for (int i = 0; i < 40000; ++i) put(four_letters, static_cast<uint16_t>(i % 512 == 0 ? 4 : i * i % 4));
  CHECK(open(four_letters, Format::tokens_u16) == 40000);
  CHECK(open(u32 + u16.substr(2, 400), Format::tokens_u16) == 80200);

  CHECK_HAS(problem("\x93NUMPY\x01" + u16, Format::tokens_u16), "save it with ndarray.tofile");
  write_ottava(folder / "ottava.bin", byte_encoder(), {{1, 2, 3}});
  for (const Format format : {Format::tokens_u16, Format::tokens_u32}) {
    CHECK_HAS(problem(read_file(folder / "ottava.bin"), format),
              "leave its format (training.format, or format of its source or set) at auto");
    CHECK_HAS(problem(llmc<uint16_t>(20240520, 1, {{1, 2}}), format),
              "leave its format (training.format, or format of its source or set) at auto");
    CHECK_HAS(problem(llmc<uint32_t>(20240801, 7, {{1, 2}}), format),
              "leave its format (training.format, or format of its source or set) at auto");
  }
}

TEST_CASE("every shard format gives its documents, in blocks of any size") {
  TemporaryFolder folder;
  std::vector<std::pair<std::string, Tokens>> shards;
  for (int32_t vocab_size : {60000, 70000}) {
    Tokens documents = make_documents(500, 1, vocab_size);
    shards.emplace_back(folder / fmt::format("ottava{}.bin", vocab_size), documents);
    write_ottava(shards.back().first, vocabulary(vocab_size), documents);
  }
  Tokens gpt2 = make_documents(500, 50256, 50000), llama = make_documents(500, 128000, 100000);
  shards.emplace_back(folder.write("gpt2.bin", llmc<uint16_t>(20240520, 1, gpt2)), gpt2);
  shards.emplace_back(folder.write("llama.bin", llmc<uint32_t>(20240801, 7, llama)), llama);
  for (uint8_t type : {8, 4}) {
    Tokens documents = make_documents(500, 2, type == 8 ? 60000 : 120000);
    MegatronPair pair = megatron(type, documents);
    std::string name = fmt::format("megatron{}", type);
    folder.write(name + ".idx", pair.idx);
    shards.emplace_back(folder.write(name + ".bin", pair.bin), documents);
  }
  for (const auto& [path, documents] : shards) {
    INFO(path);
    for (int64_t block_bytes : {50, 999, 1 << 20})
      CHECK(read_documents(path, 200000, block_bytes) == documents);
    CHECK(TokenShard::open(path, find_data_files({path})[0].format)->tokens() > 2000);
  }
  CHECK(TokenShard::open(shards[0].first, Format::ottava_shard)->token_bytes() == 2);
  CHECK(TokenShard::open(shards[1].first, Format::ottava_shard)->token_bytes() == 4);
  CHECK(TokenShard::open(shards[1].first, Format::ottava_shard)->fingerprint() == "bytes");
  // Either file of a Megatron pair names it.
  CHECK(read_documents(folder / "megatron8.idx", 200000, 999) == shards[4].second);
  CHECK(read_documents(folder / "megatron8.*", 200000, 999) == shards[4].second);
}

TEST_CASE("blocks of shards are counted as reading them would, and a sample far ahead is found at once") {
  TemporaryFolder folder;
  write_ottava(folder / "a.bin", vocabulary(60000), make_documents(3000, 1, 50));
  folder.write("b.bin", llmc<uint16_t>(20240520, 1, make_documents(3000, 50256, 50)));
  LoaderOptions o{.sources = {folder.path()}, .encoder = vocabulary(60000), .seq_len = 10, .seed = 3};
  for (int64_t block_bytes : {40, 1000, 30000}) {
    o.block_bytes = block_bytes;
    TokenLoader loader(o);
    for (int64_t b = 0; b < loader.corpus().blocks(); ++b) {
      std::vector<SegmentCount> counts = count_stored(loader.corpus(), b, o.seq_len).value();
      Segment segment;
      BlockReader reader(loader.corpus(), b);
      for (const SegmentCount& count : counts) {
        reader.next(segment);
        CHECK(count.documents == static_cast<int64_t>(segment.documents.size()));
        CHECK(count.bytes == static_cast<int64_t>(segment.bytes.size()));
        CHECK(count.windows * 11 + count.dropped == static_cast<int64_t>(segment.bytes.size()) / 2);
      }
      CHECK(reader.finished());
    }
    // So a position far ahead is known at once, and is the one that reading up to it would have reached.
    std::vector<int32_t> jumped = windows(loader, 10, 4000, 3);
    CHECK(loader.stats().tokens < 200);  // at most the few small blocks that were read
    TokenLoader walking(o);
    for (int64_t s = 0; s < 4000; ++s) windows(walking, 10, s, 1);
    CHECK(windows(walking, 10, 4000, 3) == jumped);
    CHECK(walking.stats().tokens > 20000);
    CHECK(walking.stats().buffer_bytes > 0);
  }
  folder.write("c.txt", "text");
  CHECK_FALSE(count_stored(Corpus(find_data_files({folder.path()}), {}), 0, 10));
}

TEST_CASE("llm.c tokens without delimiters become documents of bounded length") {
  TemporaryFolder folder;
  Tokens one(1);
  for (int i = 0; i < 1000; ++i) one[0].push_back(i);
  Tokens read = read_documents(folder.write("x.bin", llmc<uint16_t>(20240520, 1, one)), 2000, 1 << 20);
  CHECK(read.size() == 10);
  std::vector<int32_t> joined;
  for (const auto& d : read) joined.insert(joined.end(), d.begin(), d.end());
  CHECK(joined == one[0]);
}

TEST_CASE("pieces of a long llm.c document that follow one another are one document to attention") {
  TemporaryFolder folder;
  // Pieces of a hundred tokens: three of the first document, one of the second.
  Tokens documents(2);
  for (int i = 0; i < 250; ++i) documents[0].push_back(i == 0 ? 50256 : i);
  for (int i = 0; i < 60; ++i) documents[1].push_back(i == 0 ? 50256 : 1000 + i);
  LoaderOptions o{.sources = {folder.write("x.bin", llmc<uint16_t>(20240520, 1, documents))},
                  .encoder = vocabulary(60000),
                  .seq_len = 309,
                  .order = Order::sequential,
                  .block_bytes = 1 << 20,
                  .max_text_bytes = 400};
  std::vector<int32_t> inputs(309), targets(309), starts(309), expected(309, 0);
  std::fill(expected.begin() + 250, expected.end(), 250);
  TokenLoader loader(o);
  loader.read(0, 1, {inputs.data(), targets.data(), starts.data()});
  CHECK(starts == expected);
  CHECK(loader.known().documents == 2);
  CHECK(count_stored(loader.corpus(), 0, 309).value()[0].documents == 2);
  CHECK(loader.scan().look(1).documents == 2);
  // When shuffled, a piece begins a document unless it comes right after the one that it follows in the file.
  o.order = Order::shuffled;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    o.seed = seed;
    TokenLoader shuffled(o);
    shuffled.read(0, 1, {inputs.data(), targets.data(), starts.data()});
    int32_t start = 0;
    for (int32_t i = 0; i < 309; ++i) {
      const int32_t id = inputs[static_cast<size_t>(i)];
      // 50256 begins both documents, so it may come before the second id of either.
      const int32_t before = i > 0 ? inputs[static_cast<size_t>(i - 1)] : 50256;
      const bool follows = id != 50256 && (before + 1 == id || (before == 50256 && id % 1000 == 1));
      if (!follows) start = i;
      CHECK(starts[static_cast<size_t>(i)] == start);
    }
  }
}

TEST_CASE("of bare ids pieces are counted, which are no documents") {
  TemporaryFolder folder;
  std::string ids;
  for (int i = 0; i < 250; ++i) put(ids, static_cast<uint16_t>(i));
  LoaderOptions o{.sources = {folder.write("x.bin", ids)},
                  .format = Format::tokens_u16,
                  .encoder = vocabulary(60000),
                  .seq_len = 20,
                  .max_text_bytes = 400};
  TokenLoader loader(o);
  CHECK_FALSE(loader.corpus().knows_documents());
  CHECK(loader.scan().look(1).documents == 3);
}

TEST_CASE("an id outside the vocabulary names file, byte and id") {
  TemporaryFolder folder;
  std::string path = folder.write("x.bin", llmc<uint16_t>(20240520, 1, {{50256, 5, 6}, {50256, 7}}));
  CHECK_HAS(message_of<DataError>([&] { read_documents(path, 50000, 100); }),
            "x.bin' has token id 50256 at byte 1024, but the vocabulary has 50000 (0 to 49999)");
  std::string wide = folder.write("y.bin", llmc<uint32_t>(20240801, 7, {{128000, 5, -6}}));
  CHECK_HAS(message_of<DataError>([&] { read_documents(wide, 130000, 100); }),
            "token id 4294967290 at byte 1032");
}

TEST_CASE("training refuses shards of another tokenizer") {
  TemporaryFolder folder;
  write_ottava(folder / "x.bin", byte_encoder(), make_documents(10, 1, 50));
  LoaderOptions o{.sources = {folder.path()}, .encoder = byte_encoder(), .seq_len = 4};
  TokenLoader loader(o);
  CHECK(windows(loader, 4, 0, 1).size() == 5);
  o.encoder.fingerprint = "words";
  CHECK_HAS(message_of<DataError>([&] { TokenLoader{o}; }),
            "x.bin' was prepared with tokenizer bytes, this run uses words");
  // Fingerprints too long for the header are stored by their hash.
  o.encoder.fingerprint = std::string(100, 'f');
  write_ottava(folder / "x.bin", o.encoder, make_documents(10, 1, 50));
  CHECK(TokenLoader(o).corpus().fingerprints()[0].second.starts_with("xxh64:"));
}

TEST_CASE("the writer refuses ids outside its vocabulary and leaves no shard before it is finished") {
  TemporaryFolder folder;
  ShardWriter writer(folder / "x.bin", byte_encoder());
  CHECK_HAS(message_of<DataError>([&] { writer.append(std::vector<int32_t>{1, 258}); }), "token id 258");
  CHECK_HAS(message_of<DataError>([&] { find_data_files({folder / "x.bin"}); }), "all of them empty");
  writer.append(std::vector<int32_t>(3 << 20, 65));  // more than it keeps
  CHECK_HAS(message_of<FileError>([&] { find_data_files({folder / "x.bin"}); }),
            "x.bin' is no token shard: it starts with 00 00 00 00");
  CHECK_HAS(message_of<FileError>([&] { ShardWriter(folder / "no/where.bin", byte_encoder()); }),
            "cannot create");
}

TEST_CASE("a document that the writer refuses leaves nothing in the shard") {
  TemporaryFolder folder;
  ShardWriter writer(folder / "x.bin", byte_encoder());
  writer.append(std::vector<int32_t>{1, 2, 3});
  CHECK_THROWS_AS(writer.append(std::vector<int32_t>{7, 8, 258}), DataError);
  writer.append(std::vector<int32_t>{4, 5});
  writer.finish();
  CHECK(read_documents(folder / "x.bin", 258, 1000) == Tokens{{1, 2, 3}, {4, 5}});
}

TEST_CASE("the writer keeps a few megabytes and writes the rest as it comes") {
  TemporaryFolder folder;
  ShardWriter writer(folder / "x.bin", byte_encoder());
  const std::vector<int32_t> document(3 << 20, 65);  // 6 MiB
  writer.append(document);
  CHECK(std::filesystem::file_size(folder / "x.bin") > 6 << 20);
  writer.append(document);
  writer.finish();
  int64_t read = 0, others = 0;
  for (const auto& piece : read_documents(folder / "x.bin", 258, 1 << 20))
    for (int32_t id : piece) ++(id == 65 ? read : others);
  CHECK(read == 2 * std::ssize(document));
  CHECK(others == 0);
}

TEST_CASE("damaged shards of ours") {
  TemporaryFolder folder;
  write_ottava(folder / "x.bin", byte_encoder(), make_documents(100, 1, 50));
  const std::string good = read_file(folder / "x.bin");
  auto problem = [&](std::string bytes) {
    std::string path = folder.write("x.bin", bytes);
    return message_of<FileError>([&] { read_documents(path, 258, 200); });
  };
  CHECK_HAS(problem(good.substr(0, 100)), "is truncated: 100 bytes, the header has 128");
  CHECK_HAS(problem(good.substr(0, good.size() - 1)), "it is truncated or damaged");
  CHECK_HAS(problem(good + "x"), "it is truncated or damaged");
  const std::string expected = fmt::format("expected {} for ", good.size());
  CHECK_HAS(problem(good.substr(0, 200)), expected);  // fewer bytes than tokens
  std::string bad = good;
  bad[8] = 9;
  CHECK_HAS(problem(bad), "has shard version 9, expected 1");
  bad = good, bad[20] = 1;
  CHECK_HAS(problem(bad), "damaged header");
  bad = good;
  overwrite(bad, good.size() - 8 * 50, int64_t{1} << 60);
  CHECK_HAS(problem(bad), "lies outside its");
  bad = good;
  std::swap_ranges(bad.end() - 8 * 50, bad.end() - 8 * 49, bad.end() - 8 * 48);
  CHECK_HAS(problem(bad), "the document table is damaged");
  folder.write("x.bin", good);
  CHECK(read_documents(folder / "x.bin", 258, 200).size() == 100);
}

TEST_CASE("damaged llm.c shards") {
  TemporaryFolder folder;
  const std::string good = llmc<uint16_t>(20240520, 1, make_documents(20, 50256, 50));
  auto problem = [&](const std::string& bytes) {
    std::string path = folder.write("x.bin", bytes);
    return message_of<FileError>([&] { read_documents(path, 60000, 200); });
  };
  CHECK_HAS(problem(good.substr(0, 500)), "is truncated: 500 bytes, llm.c's header has 1024");
  CHECK_HAS(problem(good.substr(0, good.size() - 2)), "it is truncated or damaged");
  std::string bad = good;
  overwrite(bad, 8, int32_t{-5});
  CHECK_HAS(problem(bad), "for -5 tokens");
  overwrite(bad, 8, int32_t{0x7fffffff});
  CHECK_HAS(problem(bad), "for 2147483647 tokens");
  bad = good, bad[4] = 2;
  CHECK_HAS(problem(bad), "has llm.c version 2, expected 1");
  bad = good, bad[0] ^= 1;
  CHECK_HAS(problem(bad), "is no token shard: it starts with 89 d8 34 01");
}

TEST_CASE("damaged Megatron pairs") {
  TemporaryFolder folder;
  const Tokens documents = make_documents(50, 2, 100);
  const MegatronPair good = megatron(8, documents);
  auto problem = [&](MegatronPair pair) {
    folder.write("x.idx", pair.idx);
    std::string path = folder.write("x.bin", pair.bin);
    return message_of<FileError>([&] { read_documents(path, 60000, 100); });
  };
  auto with_idx = [&](size_t at, auto value) {
    MegatronPair pair = good;
    overwrite(pair.idx, at, value);
    return pair;
  };
  CHECK_HAS(problem({good.bin, "something else entirely, quite long"}), "does not start with MMIDIDX");
  CHECK_HAS(problem({good.bin, good.idx.substr(0, 20)}), "is truncated: 20 bytes");
  CHECK_HAS(problem({good.bin, good.idx.substr(0, good.idx.size() - 1)}), "it is truncated or damaged");
  CHECK_HAS(problem({good.bin.substr(2), good.idx}), "does not belong together or is truncated");
  CHECK_HAS(problem(with_idx(9, uint64_t{2})), "has Megatron index version 2");
  CHECK_HAS(problem(with_idx(17, uint8_t{7})), "tokens of Megatron type 7, expected 8 (uint16) or 4 (int32)");
  CHECK_HAS(problem(with_idx(18, ~uint64_t{0})), "it is truncated or damaged");
  CHECK_HAS(problem(with_idx(26, uint64_t{0})), "it is truncated or damaged");
  size_t pointers = 34 + 4 * 50, table = pointers + 8 * 50;
  CHECK_HAS(problem(with_idx(table + 8 * 25, int64_t{-3})), "out of order or beyond 50 sequences");
  CHECK_HAS(problem(with_idx(table + 8 * 25, int64_t{1} << 40)), "out of order or beyond 50 sequences");
  CHECK_HAS(problem(with_idx(table + 8 * 50, int64_t{99})), "ends with 99, expected its 50 sequences");
  CHECK_HAS(problem(with_idx(table + 8 * 50, int64_t{49})), "ends with 49, expected its 50 sequences");
  CHECK_HAS(problem(with_idx(pointers + 8 * 25, int64_t{1} << 40)), "points to byte");
  CHECK_HAS(problem(with_idx(pointers + 8 * 25, int64_t{3})), "is damaged");
}
