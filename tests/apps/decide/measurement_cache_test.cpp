#include "apps/decide/measurement_cache.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/io/file.h"
#include "core/log.h"
#include "core/text/number.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

// What several processes, and programs of several ages, do with one file.

using namespace ottava;

namespace {

double speed(const Decisions::Entry& e) { return parse_number<double>(e.value).value_or(0); }

MeasurementCache::Kind speeds(int version = 0) {
  return {.name = "speeds",
          .title = "speeds of ",
          .things = "Speeds",
          .is_entry = [](const Decisions::Entry& e) { return speed(e) > 0; },
          .stays = [](const Decisions::Entry& kept,
                      const Decisions::Entry& other) { return speed(kept) >= speed(other); },
          .version = version};
}

}  // namespace

TEST_CASE("of measurements kept under one name the better stays, whoever writes last") {
  const TemporaryFolder folder;
  const MeasurementCache::Kind kind = speeds();
  const MeasurementCache cache(kind, folder.path(), "a machine");
  cache.write({{"bf16", "20", "first"}, {"fp32", "10", "first"}});
  cache.write({{"bf16", "15", "in a slow moment"}, {"fp32", "11", "in a quick one"}});
  CHECK(cache.read().find("bf16")->value == "20");
  CHECK(cache.read().find("fp32")->value == "11");
}

TEST_CASE("what many write at once is kept as a whole") {
  const TemporaryFolder folder;
  const MeasurementCache::Kind kind = speeds();
  constexpr int kWriters = 8, kRounds = 10;
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      const MeasurementCache cache(kind, folder.path(), "a machine");
      for (int round = 0; round < kRounds; ++round)
        cache.write({{fmt::format("{} {}", w, round), "1", ""}, {"common", std::to_string(w + 1), ""}});
    });
  }
  for (std::thread& writer : writers) writer.join();
  const MeasurementCache cache(kind, folder.path(), "a machine");
  CHECK(cache.read().entries.size() == kWriters * kRounds + 1);
  CHECK(cache.read().find("common")->value == std::to_string(kWriters));
  // Nothing else is left in the folder.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("what was measured in an older way is measured again without a word, and goes at the next write") {
  const TemporaryFolder folder;
  const MeasurementCache::Kind kinds[] = {speeds(), speeds(1), speeds(2)};
  const CapturedOutput log;
  log::set_level(log::Level::warning);
  for (const MeasurementCache::Kind& kind : kinds) {
    const MeasurementCache cache(kind, folder.path(), "a machine");
    CHECK(cache.file() == folder / "speeds-a-machine.json");
    CHECK(cache.read().entries.empty());
    cache.write({{fmt::format("of {}", kind.version), "1", ""}});
    CHECK(cache.read().entries.size() == 1);
  }
  const MeasurementCache cache(kinds[2], folder.path(), "a machine");
  CHECK(cache.read().find("of 2"));
  CHECK(log.text().empty());
  // Another machine's is no other version.
  for (const char* made_for : {"speeds of a machine with more", "speeds of a machine, measured in way x"}) {
    std::ofstream(cache.file(), std::ios::trunc)
        << to_json({.made_for = made_for, .entries = {{"of 2", "1", ""}}});
    CHECK(cache.read().entries.empty());
    CHECK_THAT(log.text(), Catch::Contains(made_for));
  }
}
