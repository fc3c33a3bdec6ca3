#include "parallel/checkpoint/checksum.h"

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
  CHECK_THROWS_WITH(element_checksum(values, {8, 0, 1}), Contains("elements have 8 bytes"));
  CHECK(from_hex(to_hex(0x123456789abcdef0u), "x") == 0x123456789abcdef0u);
  CHECK_THROWS_WITH(from_hex("12", "x"), Contains("not a checksum"));
  CHECK_THROWS_WITH(from_hex("123456789abcdefg", "x"), Contains("not a checksum"));
}

}  // namespace
}  // namespace ottava::checkpoint
