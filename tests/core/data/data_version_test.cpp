#include "core/data/data_version.h"

#include <chrono>
#include <filesystem>

#include "tests/core/data/fixture.h"
#include "tests/core/data/shards.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;
namespace fs = std::filesystem;

namespace {

void touch(const std::string& path) {
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
}

}  // namespace

TEST_CASE("a change between the samples of a file shows in the version of its data, a copy does not") {
  TemporaryFolder folder, other;
  std::string text(100'000, 'a');
  const auto found = [](const std::string& path) { return find_data_files({path}); };
  const std::vector<DataFile> before = found(folder.write("a.txt", text));
  const std::string version = version_of(before);
  CHECK(version.starts_with("whole "));
  CHECK(version_of(found(other.write("b.txt", text))) == version);
  touch(before[0].path);
  CHECK(version_of(before) == version);
  text[30'000] = 'b';
  const std::vector<DataFile> after = found(folder.write("a.txt", text));
  CHECK(after[0].content == before[0].content);
  CHECK(version_of(after) != version);
  // A byte that moved from one file to the next.
  CHECK(version_of(find_data_files({other.write("x/1.txt", "ab"), other.write("x/2.txt", "c")})) !=
        version_of(find_data_files({other.write("y/1.txt", "a"), other.write("y/2.txt", "bc")})));
}

TEST_CASE("the version of much data follows the times of its files") {
  TemporaryFolder folder;
  const std::vector<DataFile> files = find_data_files(
      {folder.write("a.txt", std::string(600, 'a')), folder.write("b.txt", std::string(600, 'b'))});
  CHECK(version_of(files, 1200).starts_with("whole "));
  const std::string version = version_of(files, 1199);
  CHECK(version.starts_with("times "));
  CHECK(version_of(files, 1199) == version);
  touch(files[1].path);
  CHECK(version_of(files, 1199) != version);
}

TEST_CASE("the table of a Megatron shard is part of its version") {
  TemporaryFolder folder;
  folder.write("a.bin", "tokens");
  folder.write("a.idx", "table");
  const std::vector<DataFile> files{{.path = folder / "a.bin", .format = Format::megatron_shard}};
  const std::string version = version_of(files);
  folder.write("a.idx", "bable");
  CHECK(version_of(files) != version);
}
