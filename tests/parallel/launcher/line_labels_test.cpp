#include "parallel/launcher/line_labels.h"

#include <fcntl.h>

#include <sstream>
#include <string>

#include "core/io/descriptor.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;

TEST_CASE("a line of more than 64 KiB is cut, and each part of it comes once") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; text.size() < 200'000; ++i) text += std::to_string(i) + " ";
  const std::string from = folder.write("written", text + "\nthe next\n"), to = folder.write("passed_on", "");
  {
    const Descriptor out(::open(to.c_str(), O_WRONLY));
    LineLabels labels(Descriptor(::open(from.c_str(), O_RDONLY)), {.to = out, .label = "[rank 1] "});
    LineOutlet outlet;
    while (labels.forward(outlet)) {
    }
    REQUIRE(outlet.is_empty());
  }
  std::istringstream lines(read_file(to));
  std::string joined, line;
  for (; std::getline(lines, line) && line != "[rank 1] the next"; joined += line.substr(9)) {
    REQUIRE(line.starts_with("[rank 1] "));
    CHECK(line.size() < 80'000);
  }
  CHECK(joined == text);
  CHECK(line == "[rank 1] the next");
}
