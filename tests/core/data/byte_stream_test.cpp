#include "core/data/byte_stream.h"

#include "tests/core/data/compress.h"
#include "tests/core/data/fixture.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;

namespace {

std::string read_all(const std::string& path, Compression compression, size_t step) {
  auto stream = open_stream(path, compression);
  std::string all;
  while (stream->append(all, step) > 0) {
  }
  CHECK(stream->append(all, step) == 0);
  return all;
}

std::string noise(size_t bytes) {
  std::string text;
  for (uint32_t x = 1; text.size() < bytes; x = x * 1664525 + 1013904223)
    text.push_back(static_cast<char>(x >> 24));
  return text;
}

}  // namespace

TEST_CASE("streams give the content whatever the steps it is read in") {
  TemporaryFolder folder;
  // Larger than the input buffer also when compressed, so that it is refilled; repeats make the output run
  // ahead.
  std::string content = noise(400000) + std::string(3000000, 'a') + noise(1000);
  std::string plain = folder.write("x", content), gz = folder.write("x.gz", gzip(content));
  std::string zst = folder.write("x.zst", zstd(content));
  for (size_t step : {size_t{4096}, size_t{262144}, size_t{10000000}}) {
    CHECK((read_all(plain, Compression::none, step) == content));
    CHECK((read_all(gz, Compression::gzip, step) == content));
    CHECK((read_all(zst, Compression::zstd, step) == content));
  }
  CHECK(read_all(folder.write("s.gz", gzip("abc")), Compression::gzip, 1) == "abc");
  CHECK(read_all(folder.write("s.zst", zstd("abc")), Compression::zstd, 1) == "abc");
  CHECK(read_all(folder.write("e.gz", gzip("")), Compression::gzip, 7).empty());
  CHECK(read_all(folder.write("e.zst", zstd("")), Compression::zstd, 7).empty());
}

TEST_CASE("members and frames in a row are one content") {
  TemporaryFolder folder;
  CHECK(read_all(folder.write("x.gz", gzip("one ") + gzip("") + gzip("two") + std::string(5, '\0')),
                 Compression::gzip, 3) == "one two");
  CHECK(read_all(folder.write("x.zst", zstd("one ") + zstd("") + zstd("two")), Compression::zstd, 3) ==
        "one two");
}

TEST_CASE("damaged compressed files are refused wherever the damage is") {
  TemporaryFolder folder;
  std::string content = noise(5000), gz = gzip(content), zst = zstd(content);
  auto problem = [&](const std::string& bytes, Compression compression) {
    std::string path = folder.write("x", bytes);
    return message_of<FileError>([&] { read_all(path, compression, 1000); });
  };
  for (size_t cut : {size_t{1}, size_t{5}, size_t{100}, gz.size() / 2, gz.size() - 1}) {
    CHECK_HAS(problem(gz.substr(0, cut), Compression::gzip),
              "is truncated: the gzip data ends in the middle");
  }
  for (size_t cut : {size_t{1}, size_t{5}, size_t{100}, zst.size() / 2, zst.size() - 1}) {
    CHECK_HAS(problem(zst.substr(0, cut), Compression::zstd),
              "is truncated: the zstd data ends in the middle");
  }
  CHECK_HAS(problem(content, Compression::gzip), "is not valid gzip data: incorrect header check");
  CHECK_HAS(problem(content, Compression::zstd), "is not valid zstd data");
  CHECK_HAS(problem(gz + "garbage", Compression::gzip), "is not valid gzip data");
  CHECK_HAS(problem(zst + "garbage!", Compression::zstd), "is not valid zstd data");
  CHECK_HAS(problem("", Compression::gzip), "is empty, expected gzip data");
  CHECK_HAS(problem("", Compression::zstd), "is empty, expected zstd data");
  std::string flipped = gz;
  flipped[gz.size() - 6] ^= 1;  // the checksum
  CHECK_HAS(problem(flipped, Compression::gzip), "incorrect data check");
  CHECK_HAS(message_of<FileError>([&] { open_stream(folder / "none", Compression::gzip); }), "No such file");
}
