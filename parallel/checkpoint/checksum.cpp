#include "parallel/checkpoint/checksum.h"

#define XXH_INLINE_ALL  // its header is all that is needed
#include <xxhash.h>

#include "core/error.h"
#include "core/text/number.h"
#include "parallel/checkpoint/checksum_kernels.h"

namespace ottava::checkpoint {

namespace {

void check_element_bytes(const ElementRange& range) {
  if (range.element_bytes != 2 && range.element_bytes != 4)
    fail<ShapeError>("checksum", "elements have {} bytes, expected 2 or 4", range.element_bytes);
}

}  // namespace

uint64_t element_checksum(const void* stored, const ElementRange& range) {
  check_element_bytes(range);
  const ChecksumKernels& kernels = cpu::checksum_kernels();
  const auto sum = range.element_bytes == 4 ? kernels.of_4_bytes : kernels.of_2_bytes;
  return sum(stored, static_cast<uint64_t>(range.first), range.count);
}

uint64_t copy_with_checksum(void* to, const void* stored, const ElementRange& range) {
  check_element_bytes(range);
  const ChecksumKernels& kernels = cpu::checksum_kernels();
  const auto sum = range.element_bytes == 4 ? kernels.copying_4_bytes : kernels.copying_2_bytes;
  return sum(to, stored, static_cast<uint64_t>(range.first), static_cast<int64_t>(range.count));
}

uint64_t text_checksum(std::string_view text) { return XXH64(text.data(), text.size(), 0); }

std::string to_hex(uint64_t value) { return fmt::format("{:016x}", value); }

uint64_t from_hex(std::string_view text, std::string_view where) {
  const auto value = parse_number<uint64_t>(text, 16);
  if (!value || text.size() != 16)
    fail<FileError>(where, "'{}' is not a checksum of 16 hexadecimal digits", text);
  return *value;
}

}  // namespace ottava::checkpoint
