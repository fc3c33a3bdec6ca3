#include "core/io/last_lines.h"

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace ottava {
namespace {

using Lines = std::vector<std::string>;

Lines last_lines(const std::string& text) {
  const TemporaryFolder folder;
  const std::string path = folder / "text";
  std::ofstream(path, std::ios::binary) << text;
  const File file = File::open_for_reading(path);
  Lines out;
  for (LastLines lines(file); lines.next();) {
    out.emplace_back(lines.text());
    CHECK(text.substr(0, lines.end()).ends_with(out.back() + "\n"));
  }
  return out;
}

TEST_CASE("last lines: from the last whole one to the first, empty ones too") {
  CHECK(last_lines("").empty());
  CHECK(last_lines("torn").empty());
  CHECK(last_lines("\n") == Lines{""});
  CHECK(last_lines("a\n\nbc\ntorn") == Lines{"bc", "", "a"});
  CHECK(last_lines("\n\na\n") == Lines{"a", "", ""});
}

TEST_CASE("last lines: of any length") {
  std::string text;
  Lines expected;
  for (const size_t length : {1, 65535, 65536, 65537, 0, 400000, 3}) {
    const std::string line(length, static_cast<char>('a' + length % 7));
    text += line + "\n";
    expected.insert(expected.begin(), line);
  }
  CHECK((last_lines(text) == expected));
  CHECK((last_lines(text + std::string(100000, 't')) == expected));
}

}  // namespace
}  // namespace ottava
