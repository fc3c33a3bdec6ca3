#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/io/tensor_rectangle.h"

namespace ottava::checkpoint {

/// The checksum of a tensor is a sum over its elements, modulo 2^64:
///     sum over i of XXH64(the element's stored bits as a 4-byte little-endian integer, seed = i)
/// where i is the row-major index in the whole tensor. The sum does not depend on which rank holds which
/// elements: ranks of any layout add up their own, and one integer sum over ranks is the tensor's checksum.
/// For a given seed XXH64 of 4 bytes is a bijection, so a change of a single element is always seen.
struct ElementRange {
  size_t element_bytes = 4;  ///< 2 or 4
  int64_t first = 0;         ///< index of the first element in the tensor
  size_t count = 0;
};
/// The elements of a stretch of a rectangle.
inline ElementRange range_of(DType stored, const ElementSpan& span) {
  return {static_cast<size_t>(size_of(stored)), span.first, static_cast<size_t>(span.count)};
}
/// Throws ShapeError for elements of another size than 2 or 4 bytes.
uint64_t element_checksum(const void* stored, const ElementRange& range);
/// Copies the elements to memory that does not overlap and returns their checksum, in one pass over memory.
/// (A checksum takes longer than a copy.)
uint64_t copy_with_checksum(void* to, const void* stored, const ElementRange& range);

/// XXH64 of a text, seed 0.
uint64_t text_checksum(std::string_view text);

/// A checksum as 16 hexadecimal digits, and back. from_hex() throws FileError naming `where`.
std::string to_hex(uint64_t value);
uint64_t from_hex(std::string_view text, std::string_view where);

}  // namespace ottava::checkpoint
