#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

// One test body for every device. The devices are those the process can use, so the same test runs on the CPU
// everywhere, on a GPU where there is one, and, linked with tests/support/cuda_host, runs the kernels without
// one:
//
//     for_each_device_and_dtype([](Stream& stream, DType dtype) {
//       DeviceBuffer x(stream, dtype, {4, 8}, values), y(stream, dtype, {4, 8});
//       some_op(stream, {.x = x, .y = y});
//       CHECK(y.floats()[0] == Approx(1.0));
//     });
namespace ottava::test {

/// cpu, and cuda:0 where it can be used; OTTAVA_TEST_DEVICES=cpu or =cuda leaves the other out.
inline std::vector<Device> devices() {
  const char* wish = std::getenv("OTTAVA_TEST_DEVICES");
  std::string_view only = wish ? wish : "";
  std::vector<Device> list;
  if (only != "cuda") list.push_back({DeviceType::cpu, 0});
  if (only != "cpu" && cuda_device_count() > 0) list.push_back({DeviceType::cuda, 0});
  REQUIRE(!list.empty());
  return list;
}

/// Whether a case that needs a GPU has one.
inline bool has_gpu() {
  for (Device device : devices()) {
    if (device.type == DeviceType::cuda) return true;
  }
  return false;
}

inline Stream stream_on(Device device) {
  return device.type == DeviceType::cuda ? Stream::cuda(device.index) : Stream::cpu();
}

/// Owned memory of one tensor on a stream's device. Uploads, downloads and release wait for the stream. A
/// buffer made without values holds 0xFF bytes: NaN in every float format, so an element that an operation
/// forgot shows.
class DeviceBuffer {
 public:
  DeviceBuffer(Stream& stream, DType dtype, Shape shape) : stream_(&stream), tensor_{nullptr, dtype, shape} {
    size_t bytes = size_in_bytes() ? size_in_bytes() : 1;
    tensor_.data = on_gpu() ? cuda::allocate(stream.device().index, bytes)
                            : ::operator new (bytes, std::align_val_t{64});
    const std::vector<unsigned char> fill(std::min(size_in_bytes(), size_t{1} << 20), 0xff);
    for (size_t at = 0; at < size_in_bytes(); at += fill.size()) {
      move(static_cast<char*>(tensor_.data) + at, fill.data(), std::min(fill.size(), size_in_bytes() - at));
    }
  }
  /// Values are rounded to f32 or bf16 storage.
  DeviceBuffer(Stream& stream, DType dtype, Shape shape, std::span<const float> values)
      : DeviceBuffer(stream, dtype, shape) {
    upload(values);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() {
    if (on_gpu()) {
      cuda::release(stream_->device().index, tensor_.data);
    } else {
      ::operator delete (tensor_.data, std::align_val_t{64});
    }
  }

  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }

  void upload(std::span<const float> values) {
    require(static_cast<int64_t>(values.size()) == tensor_.numel());
    if (tensor_.dtype == DType::f32) return write(values.data());
    require(tensor_.dtype == DType::bf16);
    std::vector<bf16> rounded(values.begin(), values.end());
    write(rounded.data());
  }
  /// Elements as stored; one-byte floats as uint8_t.
  template <class T>
  void upload_as(std::span<const T> values) {
    require(static_cast<int64_t>(values.size() * sizeof(T)) == tensor_.bytes());
    write(values.data());
  }
  template <class T>
  std::vector<T> download_as() const {
    require(size_of(tensor_.dtype) == sizeof(T));
    std::vector<T> values(static_cast<size_t>(tensor_.numel()));
    read(values.data());
    return values;
  }
  /// f32 or bf16 elements as floats.
  std::vector<float> floats() const {
    if (tensor_.dtype == DType::f32) return download_as<float>();
    require(tensor_.dtype == DType::bf16);
    std::vector<float> values;
    for (bf16 x : download_as<bf16>()) values.push_back(static_cast<float>(x));
    return values;
  }

 private:
  // Ranks that are threads have such buffers, so that this is no assertion of Catch's.
  void require(bool fits) const {
    if (!fits) throw std::logic_error("these values do not fit a tensor of " + describe(tensor_));
  }
  bool on_gpu() const { return stream_->type() == DeviceType::cuda; }
  size_t size_in_bytes() const { return static_cast<size_t>(tensor_.bytes()); }
  void write(const void* source) { move(tensor_.data, source, size_in_bytes()); }
  void read(void* destination) const { move(destination, tensor_.data, size_in_bytes()); }
  void move(void* destination, const void* source, size_t bytes) const {
    if (bytes == 0) return;
    if (!on_gpu()) {
      std::memcpy(destination, source, bytes);
      return;
    }
    cuda::copy(destination, source, bytes, stream_->native());
    stream_->synchronize();
  }

  Stream* stream_;
  Tensor tensor_;
};

/// Calls body(Stream&) once per device.
template <class F>
void for_each_device(F&& body) {
  for (Device device : devices()) {
    INFO("device " << to_string(device));
    Stream stream = stream_on(device);
    body(stream);
    stream.synchronize();
  }
}

/// Calls body(Stream&, DType) for f32 and bf16 on each device.
template <class F>
void for_each_device_and_dtype(F&& body) {
  for_each_device([&](Stream& stream) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      INFO("dtype " << name_of(dtype));
      body(stream, dtype);
    }
  });
}

}  // namespace ottava::test
