#pragma once

#include <vector>

#include "core/ops/elementwise.h"

namespace ottava {

/// The elements of a tensor, copied to the host. T is the type of its elements. Synchronizes the stream.
template <class T>
std::vector<T> host_values(Stream& stream, const Tensor& tensor) {
  std::vector<T> values(tensor.numel());
  cast(stream, tensor, view_of(values.data(), tensor.shape));
  stream.synchronize();
  return values;
}

/// Copies all elements of the tensor to or from host memory, which must live until the stream has done the
/// copy. T is the type of the tensor's elements.
template <class T>
void copy_to_host(Stream& stream, const Tensor& from, T* to) {
  copy(stream, from, view_of(to, from.shape));
}
template <class T>
void copy_from_host(Stream& stream, const T* from, const Tensor& to) {
  copy(stream, view_of(from, to.shape), to);
}

}  // namespace ottava
