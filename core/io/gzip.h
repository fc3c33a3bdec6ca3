#pragma once

#include <string>
#include <string_view>

namespace ottava {

/// `text` as one gzip member, at zlib's fastest level. Throws FileError that names `where` if it has 4 GiB or
/// more, or there is no memory.
std::string gzip(std::string_view text, std::string_view where);
/// The text of one gzip member. Throws FileError that names `where` if `packed` is not one, is cut off, or
/// holds more than `limit_bytes`.
std::string gunzip(std::string_view packed, std::string_view where, size_t limit_bytes = size_t{1} << 30);

}  // namespace ottava
