#include "apps/decide/workbench.h"

#include <bit>

#include "core/bf16.h"
#include "core/contains.h"
#include "core/device_stream.h"
#include "core/ops/elementwise.h"
#include "core/ops/host_values.h"
#include "core/ops/matmul/matmul.h"

namespace ottava {
namespace {

constexpr int64_t kPattern = 1 << 16;  ///< elements, repeated
constexpr float kLargest = 2;          ///< of numbers

// E4M3 codes below the largest number, of both signs: 127 and 255 are NaN.
uint8_t pattern_code(int64_t i) {
  const uint32_t random = static_cast<uint32_t>(i) * 2654435761u >> 7;
  return static_cast<uint8_t>(random % 126 | (random & 0x8000 ? 0x80 : 0));
}

// The pattern is copied from the host once, then from what is there already. Ends when the pattern has been
// read: a driver may do that later than the call.
template <class T>
void repeat(Stream& stream, const std::vector<T>& pattern, const Tensor& memory) {
  auto bytes = [&](int64_t from, int64_t count) {
    return Tensor{static_cast<char*>(memory.data) + from, DType::u8, {count}};
  };
  const int64_t all = memory.bytes();
  int64_t done = std::min(static_cast<int64_t>(pattern.size() * sizeof(T)), all);
  if (done == 0) return;
  copy(stream, Tensor{const_cast<T*>(pattern.data()), DType::u8, {done}}, bytes(0, done));
  while (done < all) {
    const int64_t more = std::min(done, all - done);
    copy(stream, bytes(0, more), bytes(done, more));
    done += more;
  }
  stream.synchronize();
}

// Of what an operation quantizes: its operands, or what it makes of them. Up to 11 where the gradient of a
// norm is three numbers multiplied, and the residual's added.
float largest_made(std::string_view op) {
  constexpr float kGradients = 12;
  return op.ends_with("backward_quantize") ? kGradients : kLargest;
}

Tensor operand_like(const Tensor& t, std::string_view op, bool is_first, Workbench& bench,
                    int64_t vocabulary) {
  constexpr DType kNumbers[] = {DType::f32, DType::bf16, DType::e4m3, DType::e5m2, DType::u8};
  // Of other operations they are positions, of which all sequences have the first.
  const bool has_indices = op.starts_with("embedding") || op.starts_with("cross_entropy");
  if (t.dtype == DType::i32 && has_indices)
    return {bench.indices(t.numel(), vocabulary).data, t.dtype, t.shape};
  const bool has_scales = op == "scaled_matmul" || op == "dequantize";
  if (t.dtype == DType::f32 && op == "rope" && !is_first) return bench.rotations(t.shape);
  if (t.dtype == DType::u32) return bench.amaxes(t.shape, largest_made(op));
  if (t.dtype == DType::e8m0 || (t.dtype == DType::f32 && has_scales)) return bench.ones(t.dtype, t.shape);
  return contains(kNumbers, t.dtype) ? bench.tensor(t.dtype, t.shape) : bench.zeros(t.dtype, t.shape);
}

}  // namespace

// An f32 whose halves are bf16 numbers of the pattern is nearly the upper one of them. None is zero: that f32
// would be subnormal, and one such number in 4,000 makes products of f32 take 1.7 times as long on an Intel
// CPU.
void fill_with_numbers(Stream& stream, const Tensor& memory, float largest) {
  constexpr int64_t kSteps = 4000;
  std::vector<bf16> pattern;
  for (int64_t i = 0; i < kPattern; ++i) {
    const auto step = static_cast<float>((i * 2654435761u >> 7) % kSteps);
    pattern.emplace_back(largest * (2 * step / (kSteps - 1) - 1));
  }
  repeat(stream, pattern, memory);
}

std::vector<int32_t> scattered_indices(int64_t count, int64_t limit) {
  std::vector<int32_t> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<int32_t>(i * 2654435761 % 4294967291 % limit));
  return values;
}

Tensor Workbench::filled(DType dtype, Shape shape, const std::function<void(Stream&, const Tensor&)>& fill) {
  Tensor tensor{nullptr, dtype, shape};
  if (device_.type == DeviceType::meta) return tensor;
  constexpr int64_t kLeastBytes = 256;  // a workspace of nothing has an address too
  buffers_.emplace_back(device_, std::max(tensor.bytes(), kLeastBytes));
  tensor.data = buffers_.back().data();
  Stream stream = device_stream(device_);
  fill(stream, tensor);
  stream.synchronize();
  return tensor;
}

Tensor Workbench::tensor(DType dtype, Shape shape) {
  return filled(dtype, shape, [](Stream& stream, const Tensor& memory) {
    if (size_of(memory.dtype) > 1) return fill_with_numbers(stream, memory, kLargest);
    std::vector<uint8_t> pattern;
    for (int64_t i = 0; i < kPattern; ++i) pattern.push_back(pattern_code(i));
    repeat(stream, pattern, memory);
  });
}

void Workbench::give_workspace(Stream& stream, int64_t bytes) {
  set_matmul_workspace(stream, tensor(DType::u8, {bytes}));
}

// With an amax of 0 every number would saturate, which takes longer and never happens in training; with the
// pattern's largest, of every 28 numbers one would have the largest code and be looked at for saturation,
// where in training only the amax itself has it.
Tensor Workbench::amaxes(Shape shape, float largest) {
  return filled(DType::u32, shape, [=](Stream& stream, const Tensor& memory) {
    repeat(stream, std::vector<uint32_t>(kPattern, std::bit_cast<uint32_t>(2 * largest)), memory);
  });
}

Tensor Workbench::zeros(DType dtype, Shape shape) { return filled(dtype, shape, fill_zero); }

Tensor Workbench::ones(DType dtype, Shape shape) {
  return filled(dtype, shape, [](Stream& stream, const Tensor& memory) {
    constexpr uint8_t kOneE8m0 = 127;
    if (memory.dtype == DType::f32) return repeat(stream, std::vector<float>(kPattern, 1.0f), memory);
    repeat(stream, std::vector<uint8_t>(kPattern, kOneE8m0), memory);
  });
}

Tensor Workbench::rotations(Shape shape) {
  return filled(DType::f32, shape, [](Stream& stream, const Tensor& memory) {
    const int64_t half = memory.cols() / 2;
    std::vector<float> pattern(memory.numel());
    for (int64_t i = 0; i < std::ssize(pattern); ++i) pattern[i] = i / half % 2 == 0 ? 0.6f : 0.8f;
    repeat(stream, pattern, memory);
  });
}

Tensor Workbench::indices(int64_t count, int64_t limit) {
  std::vector<int32_t> values = scattered_indices(count, limit);
  return filled(DType::i32, {count},
                [&](Stream& stream, const Tensor& memory) { copy_from_host(stream, values.data(), memory); });
}

std::function<void(Stream&)> prepare(const RecordedOperation& operation, Workbench& bench,
                                     int64_t vocabulary) {
  std::vector<Tensor> tensors;
  const bool is_squared = operation.op == "matmul" && operation.variant == "symmetric";
  for (const Tensor& t : operation.call.tensors) {
    tensors.push_back(is_squared && tensors.size() == 1
                          ? tensors[0]
                          : operand_like(t, operation.op, tensors.empty(), bench, vocabulary));
  }
  return operation.call.on(tensors);
}

}  // namespace ottava
