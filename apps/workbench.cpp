#include "apps/workbench.h"

#include <algorithm>

#include "core/ops/elementwise.h"

namespace ottava {
namespace {

constexpr int64_t kPattern = 1 << 16;  ///< elements, repeated

float pattern_value(int64_t i) { return static_cast<float>((i * 2654435761u >> 7) % 4001) / 1000.0f - 2.0f; }

// E4M3 codes below the largest number, of both signs: 127 and 255 are NaN.
uint8_t pattern_code(int64_t i) {
  const uint32_t random = static_cast<uint32_t>(i) * 2654435761u >> 7;
  return static_cast<uint8_t>(random % 126 | (random & 0x8000 ? 0x80 : 0));
}

}  // namespace

Workbench::Workbench(Device device) : device_(device) {}

Tensor Workbench::allocate(DType dtype, Shape shape) {
  Tensor tensor{nullptr, dtype, shape};
  if (device_.type == DeviceType::meta) return tensor;
  buffers_.emplace_back(device_, static_cast<size_t>(std::max<int64_t>(tensor.bytes(), 1)));
  tensor.data = buffers_.back().data();
  return tensor;
}

void Workbench::fill(const Tensor& tensor, const void* pattern, int64_t pattern_bytes) {
  Stream stream = device_.type == DeviceType::cuda ? Stream::cuda(device_.index) : Stream::cpu();
  for (int64_t at = 0; at < tensor.bytes(); at += pattern_bytes) {
    int64_t bytes = std::min(pattern_bytes, tensor.bytes() - at);
    cast(stream, Tensor{const_cast<void*>(pattern), DType::u8, {bytes}},
         Tensor{static_cast<char*>(tensor.data) + at, DType::u8, {bytes}});
  }
  stream.synchronize();
}

Tensor Workbench::tensor(DType dtype, Shape shape) {
  Tensor tensor = allocate(dtype, shape);
  if (!tensor.data) return tensor;
  if (dtype == DType::f32) {
    std::vector<float> pattern;
    for (int64_t i = 0; i < kPattern; ++i) pattern.push_back(pattern_value(i));
    fill(tensor, pattern.data(), kPattern * 4);
  } else if (size_of(dtype) == 1) {
    std::vector<uint8_t> pattern;
    for (int64_t i = 0; i < kPattern; ++i) pattern.push_back(pattern_code(i));
    fill(tensor, pattern.data(), kPattern);
  } else {
    std::vector<bf16> pattern;
    for (int64_t i = 0; i < kPattern; ++i) pattern.emplace_back(pattern_value(i));
    fill(tensor, pattern.data(), kPattern * 2);
  }
  return tensor;
}

Tensor Workbench::ones(DType dtype, Shape shape) {
  constexpr uint8_t kOneE8m0 = 127;
  Tensor tensor = allocate(dtype, shape);
  if (!tensor.data) return tensor;
  if (dtype == DType::f32) {
    const std::vector<float> pattern(kPattern, 1.0f);
    fill(tensor, pattern.data(), kPattern * 4);
  } else {
    const std::vector<uint8_t> pattern(kPattern, kOneE8m0);
    fill(tensor, pattern.data(), kPattern);
  }
  return tensor;
}

Tensor Workbench::zeros(DType dtype, Shape shape) {
  Tensor tensor = allocate(dtype, shape);
  std::vector<char> pattern(kPattern);
  if (tensor.data) fill(tensor, pattern.data(), kPattern);
  return tensor;
}

Tensor Workbench::indices(int64_t count, int64_t limit) {
  Tensor tensor = allocate(DType::i32, {count});
  std::vector<int32_t> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<int32_t>(i * 2654435761 % 4294967291 % limit));
  if (tensor.data) fill(tensor, values.data(), count * 4);
  return tensor;
}

}  // namespace ottava
