#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>

namespace ottava {

/// Bytes for people: "12.3 MiB", "1.50 GiB".
inline std::string size_text(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (b < 1 << 20) return fmt::format("{:.1f} KiB", b / 1024);
  if (b < 1 << 30) return fmt::format("{:.1f} MiB", b / (1 << 20));
  return fmt::format("{:.2f} GiB", b / (1 << 30));
}

}  // namespace ottava
