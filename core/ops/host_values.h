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

/// Copies as many elements as the tensor has to or from memory of the host, which stays until the stream has
/// come so far. T is the tensor's dtype's.
template <class T>
void copy_to_host(Stream& stream, const Tensor& from, T* to) {
  copy(stream, from, view_of(to, from.shape));
}
template <class T>
void copy_from_host(Stream& stream, const T* from, const Tensor& to) {
  copy(stream, view_of(from, to.shape), to);
}

}  // namespace ottava
