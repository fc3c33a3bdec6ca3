#include "core/data/data_check.h"

#include <algorithm>
#include <tuple>

#include "tests/core/data/compress.h"
#include "tests/core/data/fixture.h"
#include "tests/support/captured_output.h"
#include "tests/support/launched.h"
#include "tests/support/no_threads.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;
using Catch::Matchers::Contains;

namespace {

LoaderOptions options(const std::string& path, BadRecords bad = BadRecords::error) {
  return {.sources = {path}, .bad_records = bad, .encoder = byte_encoder(), .seq_len = 8};
}

}  // namespace

TEST_CASE("a look through the data finds what training would stumble over") {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += R"({"text": "some text"})"
             "\n";
  const std::string good = folder.write("good.jsonl", lines);
  const DataCheck all = TokenLoader(options(good)).scan().look(100);
  CHECK(all.is_whole);
  CHECK(all.documents == 40);
  CHECK(all.bytes == static_cast<int64_t>(lines.size()));
  CHECK(all.text_bytes == 40 * 9);
  CHECK(all.ill_formed == 0);

  const std::string bad = folder.write("bad.jsonl", lines +
                                                        R"({"text": "cut o)"
                                                        "\n" +
                                                        R"({"body": "x"})"
                                                        "\n" +
                                                        lines);
  CHECK_THAT(message_of<DataError>([&] { TokenLoader(options(bad)).scan().look(100); }),
             Contains("bad.jsonl' line 41, column "));
  const DataCheck skipped = TokenLoader(options(bad, BadRecords::skip)).scan().look(100);
  CHECK(skipped.bad_records == 2);
  CHECK(skipped.documents == 82);

  const DataCheck latin = TokenLoader(options(folder.write("a.txt", "caf\xe9 au lait"))).scan().look(100);
  CHECK(latin.ill_formed == 1);
  CHECK_THAT(latin.first_ill_formed, Contains("a.txt', document at byte 0"));

  // At least one block, whatever the time; the last of many is reached only with time.
  CHECK_FALSE(
      TokenLoader(options(folder.write("long.txt", std::string(20 << 20, 'x')))).scan().look(0).is_whole);
}

TEST_CASE("what the time did not reach is looked at in the background") {
  TemporaryFolder folder;
  // Few and long records: the thread that looks through them is of the lowest priority, and the machine may
  // be busy.
  const std::string line = R"({"text": ")" + std::string(8000, 'x') + "\"}\n", junk = "not JSON\n";
  std::string lines;
  while (lines.size() < 3 << 20) lines += line;
  // Blocks of 1 MiB: the first to be looked at is the first, which is good.
  auto many_blocks = [&](BadRecords bad) {
    LoaderOptions o = options(folder.write("late.jsonl", lines + junk + lines + junk), bad);
    o.block_bytes = 1 << 20;
    return o;
  };
  auto finished = [](DataScan& scan) {
    return ottava::test::wait_until(
        300, [&] { return scan.progress().found.is_whole || scan.progress().problem; });
  };

  TokenLoader strict(many_blocks(BadRecords::error));
  const DataCheck first = strict.scan().look(0);
  CHECK_FALSE(first.is_whole);
  CHECK(first.bytes > 0);
  strict.scan().look_at_the_rest();
  REQUIRE(finished(strict.scan()));
  REQUIRE(strict.scan().progress().problem);
  CHECK_THAT(*strict.scan().progress().problem, Contains("late.jsonl' line ") && Contains("column 2"));

  TokenLoader lenient(many_blocks(BadRecords::skip));
  const DataCheck before = lenient.scan().look(0);
  lenient.scan().look_at_the_rest();
  REQUIRE(finished(lenient.scan()));
  const DataCheck all = lenient.scan().progress().found;
  CHECK(all.is_whole);
  CHECK(all.bytes == static_cast<int64_t>(2 * (lines.size() + junk.size())));
  CHECK(all.bytes > before.bytes);
  CHECK(all.bad_records == 2);
  CHECK_THAT(all.first_bad_record, Contains("late.jsonl' line "));
  // Records that the check found bad are not counted as left out by training.
  CHECK(lenient.stats().bad_records == 0);

  // Where no thread can be started, data is read and not looked through.
  TokenLoader alone(many_blocks(BadRecords::skip));
  {
    const ottava::test::NoThreads no_threads;
    const CapturedOutput captured;
    CHECK_NOTHROW(alone.scan().look_at_the_rest());
    CHECK_THAT(captured.text(),
               Contains("data that training has not reached is not looked through: no thread"));
  }
  CHECK(alone.scan().progress().found.bytes == 0);
  {
    const ottava::test::NoThreads no_threads;
    CHECK_THROWS_WITH(alone.start(0),
                      Contains("[data] cannot start the thread that reads and tokenizes data: "
                               "Resource temporarily unavailable; end other processes"));
  }

  // A scan that has not finished ends with its loader.
  TokenLoader leaving(many_blocks(BadRecords::skip));
  leaving.scan().look_at_the_rest();
}

TEST_CASE("bad records are left out, the same ones every time, and counted") {
  TemporaryFolder folder;
  const std::string line = R"({"text": "abcdefghijklmnopqrstuvwxyz"})"
                           "\n",
                    junk = "not JSON\n";
  const std::string clean = folder.write("clean.jsonl", line + line + line),
                    dirty = folder.write("dirty.jsonl", junk + line + junk + line + line + junk);
  auto windows = [](const std::string& path, int64_t bad) {
    TokenLoader loader(options(path, BadRecords::skip));
    std::vector<int32_t> inputs(40 * 8), targets(40 * 8);
    loader.read(0, 40, {inputs.data(), targets.data()});
    CHECK(loader.stats().epochs >= 2);
    CHECK(loader.stats().bad_records == bad);  // though every epoch reads them
    if (bad > 0) CHECK_THAT(loader.stats().first_bad_record, Contains("dirty.jsonl' line "));
    return inputs;
  };
  CHECK(windows(dirty, 3) == windows(dirty, 3));
  // Order is drawn by document number, so what is compared is what there is.
  auto sorted = [](std::vector<int32_t> ids) {
    std::sort(ids.begin(), ids.end());
    return ids;
  };
  CHECK(sorted(windows(dirty, 3)) == sorted(windows(clean, 0)));
}

TEST_CASE("bare token ids are what the user says they are") {
  TemporaryFolder folder;
  std::string u16, u32;
  for (int i = 0; i < 100; ++i) put(u16, static_cast<uint16_t>(i)), put(u32, static_cast<uint32_t>(i));
  for (const auto& [name, bytes, format] : {std::tuple{"train16.bin", u16, Format::tokens_u16},
                                            std::tuple{"train32.bin", u32, Format::tokens_u32}}) {
    INFO(name);
    LoaderOptions o = options(folder.write(name, bytes));
    CHECK_THAT(
        message_of<FileError>([&] { TokenLoader loader(o); }),
        Contains(
            "set its format (training.format, or format of its source or set) to tokens_u16 or tokens_u32"));
    o.format = format;
    o.order = Order::sequential;
    TokenLoader loader(o);
    std::vector<int32_t> inputs(11 * 8), targets(11 * 8);
    loader.read(0, 11, {inputs.data(), targets.data()});
    for (int w = 0; w < 11; ++w) {
      CHECK(inputs[static_cast<size_t>(8 * w)] == 9 * w);
      CHECK(targets[static_cast<size_t>(8 * w) + 7] == 9 * w + 8);
    }
  }
  LoaderOptions odd = options(folder.write("odd.bin", u16 + "x"));
  odd.format = Format::tokens_u16;
  CHECK_THAT(
      message_of<FileError>([&] { TokenLoader loader(odd); }),
      Contains("no whole number of tokens of 2 bytes: is its format (training.format, or format of its "
               "source or set) right?"));
}
