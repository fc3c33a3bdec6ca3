#include "core/io/json_lines.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "tests/support/temporary_folder.h"

namespace ottava {
namespace {

std::vector<Json> lines_of(const std::string& path) {
  std::string text = read_file(path);
  std::vector<Json> lines;
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
    lines.push_back(Json::parse(text.substr(begin, text.find('\n', begin) - begin), path));
  }
  return lines;
}

TEST_CASE("JSON lines: one object per step with every bit of the numbers") {
  TemporaryFolder folder;
  std::string path = folder / "metrics.jsonl";
  JsonLines file(path, 0);
  file.append(
      1,
      {{"loss", 1.0 / 3}, {"grad_norm", std::nan("")}, {"mfu(%)", -std::numeric_limits<double>::infinity()}});
  file.append(2, {{"loss", 2.5}});
  std::vector<Json> lines = lines_of(path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("step", "t").as_integer("t") == 1);
  CHECK(lines[0].at("loss", "t").as_number("t") == 1.0 / 3);
  CHECK(lines[0].at("grad_norm", "t").is_null());
  CHECK(lines[0].at("non_finite", "t").at("grad_norm", "t").as_string("t") == "nan");
  CHECK(lines[0].at("non_finite", "t").at("mfu(%)", "t").as_string("t") == "-inf");
  CHECK(lines[0].at("time", "t").as_number("t") > 1.6e9);
  CHECK(lines[1].find("non_finite") == nullptr);
}

TEST_CASE("JSON lines: a run that resumes writes what came after its checkpoint again") {
  TemporaryFolder folder;
  std::string path = folder / "metrics.jsonl";
  {
    JsonLines file(path, 0);
    for (int64_t step = 1; step <= 5; ++step) file.append(step, {{"loss", 1.0}});
  }
  File torn = File::open_for_writing(path);
  torn.write_at("{\"step\":6,\"lo", 13, torn.size());
  {
    JsonLines file(path, 100);  // nothing but the torn end is past it
    file.append(101, {});
  }
  CHECK(lines_of(path).size() == 6);
  {
    JsonLines file(path, 3);
    file.append(4, {{"loss", 2.0}});
  }
  std::vector<Json> lines = lines_of(path);
  REQUIRE(lines.size() == 4);
  CHECK(lines[3].at("loss", "t").as_number("t") == 2.0);
  {
    JsonLines file(path, 0);
    file.append(1, {});
  }
  CHECK(lines_of(path).size() == 1);
  CHECK(lines_of(path + ".previous").size() == 4);
  { JsonLines file(path, 0); }
  CHECK(lines_of(path + ".previous-2").size() == 1);
  CHECK(lines_of(path + ".previous").size() == 4);
  JsonLines(folder / "new.jsonl", 7).append(8, {});
  CHECK(lines_of(folder / "new.jsonl").size() == 1);
  CHECK_THROWS_AS(JsonLines(folder / "no/metrics.jsonl", 0), FileError);
}

TEST_CASE("JSON lines: an unreadable line takes none behind it away") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    JsonLines file(path, 0);
    for (int64_t step = 1; step <= 5; ++step) file.append(step, {{"loss", 1.0}});
  }
  std::string text = read_file(path);
  text[text.find('\n') + 1] = '?';
  std::ofstream(path, std::ios::binary) << text;
  { JsonLines file(path, 5); }
  CHECK(read_file(path) == text);
  { JsonLines file(path, 4, JsonLines::Cut::kept_apart); }
  CHECK(read_file(path) == text.substr(0, text.find("{\"step\":5")));
  CHECK(read_file(path + ".abandoned") == text);
  { JsonLines file(path, 4, JsonLines::Cut::kept_apart); }  // nothing is cut off
  CHECK_FALSE(std::filesystem::exists(path + ".abandoned-2"));
}

TEST_CASE("JSON lines: of a long file only the end is read when a run resumes") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  constexpr int64_t kLong = int64_t{1}
                            << 40;  // of which the file system keeps the end, and no memory has room
  File::create(path).truncate(kLong);
  const std::string lines = "\n{\"step\":5}\n{\"step\":6}\n{\"step\":7}\n{\"st";
  File::open_for_writing(path).write_at(lines.data(), lines.size(), kLong);
  JsonLines(path, 6).append(7, {});
  const File file = File::open_for_reading(path);
  std::string end(file.size() - kLong, '\0');
  file.read_at(end.data(), end.size(), kLong);
  CHECK(end.starts_with("\n{\"step\":5}\n{\"step\":6}\n{\"step\":7,\"time\":"));
  CHECK(std::ranges::count(end, '\n') == 4);
}

TEST_CASE("JSON lines: a long file is kept apart a piece at a time") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  constexpr int64_t kLong = int64_t{150} << 20, kMemory = int64_t{100} << 20;
  File::create(path).truncate(kLong);
  const std::string lines = "\n{\"step\":5}\n{\"step\":6}\n";
  File::open_for_writing(path).write_at(lines.data(), lines.size(), kLong);
  const int status = test::in_child([&] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto most = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + kMemory);
    const rlimit limit{most, most};
    ::setrlimit(RLIMIT_AS, &limit);
    JsonLines(path, 5, JsonLines::Cut::kept_apart);
  });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(File::open_for_reading(path).size() == kLong + std::ssize(lines) / 2 + 1);
  const File copy = File::open_for_reading(path + ".abandoned");
  REQUIRE(copy.size() == kLong + std::ssize(lines));
  std::string end(lines.size(), '\0');
  copy.read_at(end.data(), end.size(), kLong);
  CHECK(end == lines);
}

}  // namespace
}  // namespace ottava
