#include "parallel/checkpoint/checksum.h"

#include <algorithm>
#include <vector>

#include "tests/support/catch.h"

namespace ottava::checkpoint {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("the checksum is a sum over elements of XXH64 of their bits, seeded with their index") {
  float values[3] = {1.0f, -2.0f, 0.5f};
  auto sum = [&](int64_t first, size_t count) { return element_checksum(values + first, {4, first, count}); };
  CHECK(sum(0, 3) == sum(0, 1) + sum(1, 2));
  CHECK(sum(0, 1) != element_checksum(values, {4, 1, 1}));
  // Reference: xxhash.xxh64(struct.pack('<f', 1.0), seed=0) and (struct.pack('<I', 0x3f80), seed=7) in
  // Python.
  CHECK(sum(0, 1) == 0x7b54265d12bf1ccdu);
  uint16_t half = 0x3f80;
  CHECK(element_checksum(&half, {2, 7, 1}) == 0xd1d41ed3779db29bu);
  // Vectors of elements and one after the other.
  std::vector<uint32_t> many(5001);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<uint32_t>(i * 2654435761u);
  for (const size_t bytes : {2u, 4u}) {
    const char* stored = reinterpret_cast<const char*>(many.data());
    uint64_t one_by_one = 0;
    for (size_t i = 0; i < many.size(); ++i)
      one_by_one += element_checksum(stored + i * bytes, {bytes, 9 + static_cast<int64_t>(i), 1});
    CHECK(element_checksum(stored, {bytes, 9, many.size()}) == one_by_one);
    for (const auto shift : {0, 4}) {  // from the begin of a cache's line
      std::vector<char> copy(many.size() * bytes + 5, 'x');
      CHECK(copy_with_checksum(copy.data() + shift, stored, {bytes, 9, many.size()}) == one_by_one);
      CHECK(std::equal(copy.begin() + shift, copy.end() - 5 + shift, stored));
      CHECK(std::count(copy.begin(), copy.begin() + shift, 'x') == shift);
      CHECK(std::count(copy.end() - 5 + shift, copy.end(), 'x') == 5 - shift);
    }
  }
  CHECK_THROWS_WITH(element_checksum(values, {8, 0, 1}), Contains("elements have 8 bytes"));
  CHECK_THROWS_WITH(copy_with_checksum(values + 2, values, {8, 0, 1}), Contains("elements have 8 bytes"));
  CHECK(from_hex(to_hex(0x123456789abcdef0u), "x") == 0x123456789abcdef0u);
  CHECK_THROWS_WITH(from_hex("12", "x"), Contains("not a checksum"));
  CHECK_THROWS_WITH(from_hex("123456789abcdefg", "x"), Contains("not a checksum"));
}

}  // namespace
}  // namespace ottava::checkpoint
