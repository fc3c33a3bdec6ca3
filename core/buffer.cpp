#include "core/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/held_memory.h"

namespace ottava {
namespace {

void* allocate_host(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    double free_bytes = static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    fail<MemoryError>("buffer", "the system cannot give {} bytes of memory ({:.2f} GiB are free)", bytes,
                      free_bytes / (1 << 30));
  }
  // Blocks are gigabytes: with 4 KiB pages every pass over them would miss the TLB.
  madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

struct Held {
  std::atomic<int64_t> now{0}, most{0};
};

Held& held_on(Device device) {
  constexpr size_t kGpus = 64;
  static std::array<Held, kGpus + 1> held;  // the last: host
  return held[device.type == DeviceType::cuda ? std::min(static_cast<size_t>(device.index), kGpus - 1)
                                              : kGpus];
}

void hold(Device device, int64_t bytes) {
  Held& held = held_on(device);
  const int64_t now = held.now += bytes;
  for (int64_t most = held.most; now > most && !held.most.compare_exchange_weak(most, now);) {
  }
}

}  // namespace

HeldMemory held_memory(Device device) {
  const Held& held = held_on(device);
  return {.now = held.now, .most = held.most};
}

Buffer::Buffer(Device device, size_t bytes) : device_(device), bytes_(bytes) {
  if (bytes == 0 || device.type == DeviceType::meta) return;
  if (device.type == DeviceType::cuda) {
    data_ = cuda::allocate(device.index, bytes);
    kind_ = Kind::device;
  } else {
    data_ = allocate_host(bytes);
    kind_ = Kind::host;
  }
  hold(device_, bytes_);
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
  if (kind_ == Kind::host || kind_ == Kind::device) hold(device_, -static_cast<int64_t>(bytes_));
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
