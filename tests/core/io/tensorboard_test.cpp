#include "core/io/tensorboard.h"

#include <cstring>
#include <filesystem>

#include "core/io/crc32c.h"
#include "core/io/folder.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace ottava {
namespace {

std::string only_file_in(const std::string& folder) {
  auto it = std::filesystem::directory_iterator(folder);
  std::string path = it->path().string();
  REQUIRE(++it == std::filesystem::directory_iterator());
  return path;
}

TEST_CASE("CRC-32C of the standard's examples") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
}

// What the real TensorBoard makes of the files is checked by scripts/reference/check_tensorboard.py; here the
// frames and the bytes that the protocol buffers must have, written out by hand.
TEST_CASE("event files: frames with masked checksums, fields by their numbers") {
  TemporaryFolder folder;
  {
    TensorBoardWriter writer(folder / "tb");
    writer.add_scalar("loss", 0.5, 300);
    writer.add_text("config", "a: 1", 0);
    writer.flush();
  }
  std::string path = only_file_in(folder / "tb");
  CHECK_THAT(path, Catch::Matchers::Contains("events.out.tfevents."));
  std::string bytes = read_file(path);
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    uint32_t crc_length = 0, crc_event = 0;
    REQUIRE(bytes.size() - at >= 16);
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&crc_length, bytes.data() + at + 8, 4);
    std::memcpy(&crc_event, bytes.data() + at + 12 + length, 4);
    auto masked = [](uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; };
    CHECK(crc_length == masked(crc32c(bytes.substr(at, 8))));
    CHECK(crc_event == masked(crc32c(bytes.substr(at + 12, length))));
    events.push_back(bytes.substr(at + 12, length));
    at += 16 + length;
  }
  REQUIRE(events.size() == 3);
  CHECK(events[0].substr(0, 1) == "\x09");  // wall_time, 8 bytes
  CHECK(events[0].substr(9) ==
        "\x1a\x0d"
        "brain.Event:2");
  CHECK(events[1].substr(9) == std::string("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f", 18));
  CHECK(events[2].substr(9) == std::string("\x10\0\x2a\x24\x0a\x22\x0a\x06"
                                           "config\x42\x0e\x08\x07\x12\x04\x12\x02\x08\x01"
                                           "\x42\x04"
                                           "a: 1\x4a\x08\x0a\x06\x0a\x04text",
                                           40));
}

TEST_CASE("event files: two writers in one second do not share a file; an unusable folder is refused") {
  TemporaryFolder folder;
  TensorBoardWriter a(folder.path()), b(folder.path());
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()),
                      std::filesystem::directory_iterator()) == 2);
  File::create(folder / "file");
  CHECK_THROWS_WITH(TensorBoardWriter(folder / "file/tb"),
                    "[tensorboard] cannot create the folder " + folder / "file/tb" + ": Not a directory");
}

TEST_CASE("event files: a later file comes later by name, whatever the clock says") {
  TemporaryFolder folder;
  File::create(folder / "events.out.tfevents.4000000000.other.7.0");
  File::create(folder / "events.out.tfevents.9223372036854775807.odd");
  File::create(folder / "events.out.tfevents.odd");
  TensorBoardWriter a(folder.path(), 5), b(folder.path(), 9);
  const std::vector<std::string> names = names_in(folder.path());
  REQUIRE(names.size() == 5);
  CHECK_THAT(names[1], Catch::StartsWith("events.out.tfevents.4000000001."));
  CHECK_THAT(names[2], Catch::StartsWith("events.out.tfevents.4000000002."));
}

TEST_CASE("event files: a run that resumes orphans what was written of later steps") {
  TemporaryFolder folder;
  { TensorBoardWriter writer(folder / "tb", 299); }
  const std::string bytes = read_file(only_file_in(folder / "tb"));
  // step = 300, then session_log = 7 {status = 1: START}, then the checksum.
  CHECK(bytes.substr(bytes.size() - 4 - 7, 7) == std::string("\x10\xac\x02\x3a\x02\x08\x01", 7));
  // One that begins anew beside older events orphans them all, as from step 1; the first has none to orphan.
  const std::string start("\x10\x01\x3a\x02\x08\x01", 6);
  { TensorBoardWriter first(folder / "anew", 0); }
  const std::string older = only_file_in(folder / "anew");
  CHECK(read_file(older).find(start) == std::string::npos);
  { TensorBoardWriter second(folder / "anew", 0); }
  for (const auto& entry : std::filesystem::directory_iterator(folder / "anew"))
    CHECK((read_file(entry.path()).find(start) != std::string::npos) == (entry.path() != older));
}

}  // namespace
}  // namespace ottava
