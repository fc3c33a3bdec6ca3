#pragma once

namespace ottava {

/// Bytes in GiB, 2^30 of them.
template <class Bytes>
constexpr double gib(Bytes bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

}  // namespace ottava
