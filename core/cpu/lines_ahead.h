#pragma once

#include <cstdint>

namespace ottava::cpu {

/// A matrix that is read or written next, to be brought into the L2 cache meanwhile.
struct MatrixAhead {
  enum class Use { read, write };
  const char* at = nullptr;
  int64_t stride = 0, rows = 0, bytes = 0;  ///< stride and bytes: of a row
  Use use = Use::read;
};

}  // namespace ottava::cpu
