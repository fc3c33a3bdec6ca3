#pragma once

namespace ottava {

/// Bytes as GiB (2^30 bytes).
template <class Bytes>
constexpr double gib(Bytes bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

}  // namespace ottava
