#include "core/philox.h"

#include <cmath>
#include <set>

#include "tests/support/catch.h"

using namespace ottava;

// kat_vectors of the Random123 distribution, philox4x32 10.
TEST_CASE("philox reproduces the published vectors") {
  using Words = std::array<uint32_t, 4>;
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  uint32_t f = 0xffffffff;
  CHECK(philox({f, f, f, f}, {f, f}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  static_assert(philox({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5);
}

TEST_CASE("a stream maps seed, stream and index to key and counter, low words first") {
  PhiloxStream s{.seed = 0x299f31d0a4093822, .stream = 0x0370734413198a2e};
  CHECK(s.bits(0x85a308d3243f6a88)[0] == 0xd16cfe09u);
  PhiloxStream zero;
  CHECK(zero.word(0) == 0xe169c58d6627e8d5u);
  CHECK(zero.word(1) == 0x9b00dbd8bc57ac4cu);
}

TEST_CASE("uniform numbers have the moments of the uniform distribution and depend on seed and stream") {
  PhiloxStream s{.seed = 42, .stream = 7};
  double sum = 0, squares = 0, lag = 0;
  constexpr int n = 100000;
  for (int i = 0; i < n; ++i) {
    double u = s.uniform(i);
    REQUIRE((u > 0 && u < 1));
    sum += u;
    squares += u * u;
    lag += u * s.uniform(i + 1);
  }
  CHECK(std::abs(sum / n - 0.5) < 4 * std::sqrt(1.0 / 12 / n));
  CHECK(std::abs(squares / n - 1.0 / 3) < 4 * std::sqrt(4.0 / 45 / n));
  CHECK(std::abs(lag / n - 0.25) < 0.005);
  CHECK(s.uniform(0) != PhiloxStream{.seed = 43, .stream = 7}.uniform(0));
  CHECK(s.uniform(0) != PhiloxStream{.seed = 42, .stream = 8}.uniform(0));
}

TEST_CASE("integers below n are the high half of a 128-bit product and reach every value") {
  PhiloxStream s{.seed = 1};
  std::set<uint64_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(s.below(7, i));
  CHECK(seen == std::set<uint64_t>{0, 1, 2, 3, 4, 5, 6});
  CHECK(s.below(1, 0) == 0);
#if defined(__SIZEOF_INT128__)
  for (uint64_t n : {uint64_t{3}, uint64_t{0xffffffff}, uint64_t{0x123456789abcdef}, ~uint64_t{0}}) {
    for (int i = 0; i < 100; ++i) {
      __extension__ typedef unsigned __int128 Wide;
      CHECK(s.below(n, i) == static_cast<uint64_t>(Wide{s.word(i)} * n >> 64));
    }
  }
#endif
}
