#pragma once

#include <cstddef>

#include "core/device.h"

namespace ottava {

/// Owns one block of memory on a device (nothing on `meta`). Host blocks are page-aligned, zero and, where
/// the system allows it, backed by huge pages; GPU blocks are 256-byte aligned and not initialised.
/// Move-only.
class Buffer {
 public:
  Buffer() = default;
  /// Throws MemoryError with the bytes asked for and the bytes free.
  Buffer(Device device, size_t bytes);
  /// Host memory that a GPU can copy from and to while the host goes on; plain host memory without CUDA.
  static Buffer pinned(Device device, size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  enum class Kind { none, host, device, pinned };
  Device device_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Kind kind_ = Kind::none;
};

}  // namespace ottava
