#pragma once

#include <cstddef>
#include <memory>

#include "core/device.h"

namespace ottava {

/// Owns one block of memory on a device (nothing on `meta`). Host blocks are page-aligned, filled with zeros
/// and, where the system allows it, backed by huge pages; GPU blocks are 256-byte aligned and not
/// initialised. Move-only.
class Buffer {
 public:
  Buffer() : Buffer(nullptr, {}) {}
  /// Throws MemoryError with the bytes asked for and the bytes free.
  Buffer(Device device, size_t bytes);
  /// Host memory that the GPU `device` can copy from and to while the host goes on; plain host memory for any
  /// other device. Throws MemoryError.
  static Buffer pinned(Device device, size_t bytes);

  void* data() const { return data_.get(); }
  size_t bytes() const { return data_.get_deleter().bytes; }

 private:
  struct Release {
    Device device = {};
    size_t bytes = 0;
    bool is_pinned = false;
    void operator()(void* data) const noexcept;
  };
  Buffer(void* data, Release release) : data_(data, release) {}

  std::unique_ptr<void, Release> data_;
};

}  // namespace ottava
