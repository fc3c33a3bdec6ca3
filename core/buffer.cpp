#include "core/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "core/cuda/runtime.h"
#include "core/error.h"

namespace ottava {
namespace {

void* allocate_host(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    double free_bytes =
        static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
    fail<MemoryError>("buffer", "the system cannot give {} bytes of memory ({:.2f} GiB are free)", bytes,
                      free_bytes / (1 << 30));
  }
  // Blocks are gigabytes: with 4 KiB pages every pass over them would miss the TLB.
  madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

}  // namespace

Buffer::Buffer(Device device, size_t bytes) : device_(device), bytes_(bytes) {
  if (bytes == 0 || device.type == DeviceType::meta) return;
  if (device.type == DeviceType::cuda) {
    data_ = cuda::allocate(device.index, bytes);
    kind_ = Kind::device;
  } else {
    data_ = allocate_host(bytes);
    kind_ = Kind::host;
  }
}

Buffer Buffer::pinned(Device device, size_t bytes) {
  if (device.type != DeviceType::cuda || bytes == 0) return Buffer({DeviceType::cpu, 0}, bytes);
  Buffer buffer;
  buffer.device_ = device;
  buffer.bytes_ = bytes;
  buffer.data_ = cuda::allocate_pinned(bytes);
  buffer.kind_ = Kind::pinned;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      kind_(std::exchange(other.kind_, Kind::none)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(kind_, other.kind_);
  return *this;
}

Buffer::~Buffer() {
  switch (kind_) {
    case Kind::none:
      break;
    case Kind::host:
      munmap(data_, bytes_);
      break;
    case Kind::device:
      cuda::release(device_.index, data_);
      break;
    case Kind::pinned:
      cuda::release_pinned(data_);
      break;
  }
}

}  // namespace ottava
