#pragma once

#include <vector>

#include "core/ops/elementwise.h"

namespace ottava {

/// The elements of a tensor, on the host. T is its dtype's. Synchronizes the stream.
template <class T>
std::vector<T> host_values(Stream& stream, const Tensor& tensor) {
  std::vector<T> values(tensor.numel());
  cast(stream, tensor, view_of(values.data(), tensor.shape));
  stream.synchronize();
  return values;
}

}  // namespace ottava
