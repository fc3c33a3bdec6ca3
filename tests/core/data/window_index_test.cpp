#include "core/data/window_index.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include "core/io/file.h"
#include "core/log.h"
#include "tests/core/data/fixture.h"
#include "tests/core/data/shards.h"
#include "tests/support/captured_output.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;

namespace {

SegmentCount count(int64_t windows) {
  return {.windows = windows, .documents = 1, .tokens = windows * 9 + 2, .dropped = 2, .bytes = 40};
}

size_t files_in(const std::string& folder) {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++n;
  return n;
}

}  // namespace

TEST_CASE("what is known is kept in a file and read again") {
  TemporaryFolder folder;
  {
    WindowIndex index(folder.path(), 5, 4);
    CHECK_FALSE(index.find(2));
    index.set(2, {count(3), count(4)});
    index.set(0, {count(0)});
    index.set(0, {count(100)});  // the first word stands
    index.save();
  }
  WindowIndex index(folder.path(), 5, 4);
  CHECK(index.known() == 2);
  CHECK_FALSE(index.complete());
  REQUIRE(index.find(2));
  CHECK(index.find(2)->size() == 2);
  CHECK((*index.find(2))[1].windows == 4);
  CHECK(index.total().windows == 7);
  CHECK(index.total().dropped == 6);
  CHECK(WindowIndex(folder.path(), 6, 4).known() == 0);
  CHECK(WindowIndex({}, 5, 4).known() == 0);
}

TEST_CASE("processes that share a folder add to each other's file, readers write nothing") {
  TemporaryFolder folder;
  WindowIndex a(folder.path(), 1, 8), b(folder.path(), 1, 8), late(folder.path(), 1, 8),
      reader(folder.path(), 1, 8, IndexAccess::read_only);
  a.set(0, {count(1)});
  late.set(0, {count(1)});
  b.set(1, {count(2)});
  reader.set(2, {count(3)});
  reader.save();
  CHECK(files_in(folder.path()) == 0);
  a.save();
  b.save();
  CHECK(b.known() == 2);
  CHECK(WindowIndex(folder.path(), 1, 8).total().windows == 3);
  // A writer that knows less than the file, or nothing new, leaves it alone. An hour back, a time shows each
  // write.
  const auto stamp = std::filesystem::last_write_time(a.path()) - std::chrono::hours(1);
  std::filesystem::last_write_time(a.path(), stamp);
  a.save();
  late.save();
  CHECK(late.known() == 2);
  CHECK(std::filesystem::last_write_time(a.path()) == stamp);

  std::vector<std::thread> writers;
  for (int64_t w = 2; w < 8; ++w) {
    writers.emplace_back([&, w] {
      WindowIndex index(folder.path(), 1, 8);
      for (int i = 0; i < 5; ++i) {
        index.set(w, {count(1)});
        index.save();
        WindowIndex(folder.path(), 1, 8).find(0).value();  // always whole
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a damaged index is not used and is replaced") {
  TemporaryFolder folder;
  std::string path;
  {
    WindowIndex index(folder.path(), 1, 3);
    index.set(1, {count(7)});
    index.save();
    path = index.path();
  }
  const std::string good = read_file(path);
  auto known = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return WindowIndex(folder.path(), 1, 3).known();
  };
  CHECK(known(good) == 1);
  log::set_level(log::Level::error);  // a warning for each of some hundred damaged files
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= 4;
    CHECK(known(bad) == 0);
    CHECK(known(good.substr(0, at)) == 0);
  }
  // Numbers that no data gives are damage too, whatever the checksum says.
  for (int64_t windows : {int64_t{-1}, int64_t{1} << 50}) {
    std::filesystem::remove(path);
    WindowIndex strange(folder.path(), 1, 3);
    strange.set(0, {count(1)});
    strange.set(1, {{.windows = windows}});
    strange.save();
    CHECK(std::filesystem::exists(path));
    CHECK(WindowIndex(folder.path(), 1, 3).known() == 0);
  }
  WindowIndex index(folder.path(), 1, 3);
  log::set_level(log::Level::info);
  index.set(2, {count(2)});
  index.save();
  CHECK(WindowIndex(folder.path(), 1, 3).known() == index.known());
  CHECK(index.find(2));
}

TEST_CASE("an index that is there and cannot be used is named, one that is not there is not") {
  TemporaryFolder folder;
  CapturedOutput output;
  WindowIndex index(folder / "index", 1, 2);
  CHECK(output.text() == "");
  std::filesystem::create_directory(index.path());
  CHECK(WindowIndex(folder / "index", 1, 2).known() == 0);
  CHECK_HAS(output.text(), "'" + index.path() + "' is not used and will be rewritten: ");
  CHECK_HAS(output.text(), "is not a regular file");
  std::filesystem::remove(index.path());
  std::ofstream(index.path()) << "OTTAVAIX";
  index.set(0, {count(1)});
  index.save();
  CHECK_HAS(output.text(),
            index.path() + "' is not used and will be rewritten: it is damaged or from an earlier version");
  CHECK(WindowIndex(folder / "index", 1, 2).known() == 1);
}

TEST_CASE("the table of a Megatron shard decides where blocks are cut, so its time is part of the key") {
  TemporaryFolder folder;
  const MegatronPair pair = megatron(8, {{1, 2, 3}, {4, 5}});
  folder.write("a.bin", pair.bin);
  const std::string table = folder.write("a.idx", pair.idx);
  const TextEncoder encoder = byte_encoder();
  const auto hash = [&](IndexKey::Identity of) {
    const Corpus corpus(find_data_files({folder / "a.bin"}), {});
    return IndexKey{corpus, encoder, "text", 4}.hash(of);
  };
  using enum IndexKey::Identity;
  const uint64_t of_files = hash(files), of_content = hash(content);
  CHECK(hash(files) == of_files);
  std::filesystem::last_write_time(table, std::filesystem::last_write_time(table) + std::chrono::seconds(1));
  CHECK(hash(files) != of_files);
  CHECK(hash(content) == of_content);
}

TEST_CASE("a folder that cannot be written") {
  TemporaryFolder folder;
  std::string file = folder.write("file", "x");
  CHECK_HAS(message_of<FileError>([&] { WindowIndex(file + "/x", 1, 1); }), "cannot write into the folder");
  CHECK(WindowIndex(file + "/x", 1, 1, IndexAccess::read_only).known() == 0);
  WindowIndex index(folder / "gone", 1, 1);
  index.set(0, {count(1)});
  std::filesystem::remove_all(folder / "gone");
  CHECK_HAS(message_of<FileError>([&] { index.save(); }), "cannot create");
}
