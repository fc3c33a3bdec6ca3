#pragma once

#include <cstdint>
#include <string_view>

namespace ottava {

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4): "123456789" gives 0xe3069283.
uint32_t crc32c(std::string_view bytes);

}  // namespace ottava
