#pragma once

#include "core/float8/float8_tensor.h"
#include "core/memory/arena.h"

namespace ottava {

/// A Float8Tensor in the arena: memory for one orientation or both.
struct Float8Allocation {
  struct Codes {
    Allocation codes, scale_inverse;
    explicit operator bool() const { return static_cast<bool>(codes); }
    operator fp8::Float8Codes() const {
      return codes ? fp8::Float8Codes{codes.tensor(), scale_inverse.tensor()} : fp8::Float8Codes{};
    }
  };
  Codes rowwise, columnwise;
  fp8::Granularity granularity = {};

  explicit operator bool() const { return rowwise || columnwise; }
  operator fp8::Float8Tensor() const { return {rowwise, columnwise, granularity}; }
};

}  // namespace ottava
