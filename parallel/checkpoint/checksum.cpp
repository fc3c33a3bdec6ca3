#include "parallel/checkpoint/checksum.h"

#define XXH_INLINE_ALL  // the calls below become a few multiplications each
#include <xxhash.h>

#include <charconv>
#include <cstring>

#include "core/error.h"

namespace ottava::checkpoint {
namespace {

template <class Bits>
uint64_t sum_of(const void* stored, const ElementRange& range) {
  auto* bytes = static_cast<const char*>(stored);
  uint64_t sum = 0, seed = static_cast<uint64_t>(range.first);
  for (size_t i = 0; i < range.count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
    uint32_t cell = bits;
    sum += XXH64(&cell, sizeof cell, seed + i);
  }
  return sum;
}

}  // namespace

uint64_t element_checksum(const void* stored, const ElementRange& range) {
  if (range.element_bytes == 4) return sum_of<uint32_t>(stored, range);
  if (range.element_bytes == 2) return sum_of<uint16_t>(stored, range);
  fail<ShapeError>("checksum", "elements have {} bytes, expected 2 or 4", range.element_bytes);
}

uint64_t text_checksum(std::string_view text) { return XXH64(text.data(), text.size(), 0); }

std::string to_hex(uint64_t value) { return fmt::format("{:016x}", value); }

uint64_t from_hex(std::string_view text, std::string_view where) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16) {
    fail<FileError>(where, "'{}' is not a checksum of 16 hexadecimal digits", text);
  }
  return value;
}

}  // namespace ottava::checkpoint
