#include "parallel/comm/gather.h"

#include <array>

#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;

namespace {

constexpr int kRanks = 3;

std::string text_of(int rank, size_t length) { return std::string(length, static_cast<char>('a' + rank)); }

}  // namespace

TEST_CASE("every rank's number and text come by rank, also where texts are empty or differ in length") {
  std::array<std::vector<int64_t>, kRanks> numbers;
  std::array<std::vector<std::string>, kRanks> texts, empty;
  test::run_thread_ranks({.ranks = kRanks}, [&](Communicator& world) {
    const int rank = world.rank();
    numbers[rank] = gather_number(world, 10 - rank, "test");
    texts[rank] = gather_text(world, text_of(rank, 4 * rank), "test");
    empty[rank] = gather_text(world, "", "test");
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    CHECK(numbers[rank] == std::vector<int64_t>{10, 9, 8});
    CHECK(texts[rank] == std::vector<std::string>{"", "bbbb", "cccccccc"});
    CHECK(empty[rank] == std::vector<std::string>(kRanks));
  }
}

TEST_CASE("rank 0's text comes whole, whatever the others say, and no rank sends it more than twice") {
  const std::string bytes("\xff\x00\x80 is not text", 14);
  const std::string text =
      GENERATE_COPY(as<std::string>{}, "", "a", "abc", "abcd", "abcde", bytes, text_of(0, 100001));
  CAPTURE(text.size());
  std::array<std::string, kRanks> got;
  std::array<int64_t, kRanks> sent = {};
  test::run_thread_ranks({.ranks = kRanks}, [&](Communicator& world) {
    const int rank = world.rank();
    got[rank] = text_of_rank_0(world, rank == 0 ? text : text_of(rank, 200'000), "test");
    sent[rank] = world.stats().sent_bytes();
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    CHECK(got[rank] == text);
    // The length is sent too, and the text is rounded up to whole words.
    CHECK(sent[rank] <= 2 * (std::ssize(text) + 3 + 8));
  }
}
