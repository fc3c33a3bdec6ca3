#include "core/buffer.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/held_memory.h"
#include "core/text/gib.h"

namespace ottava {
namespace {

void* allocate_host(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    double free_bytes = static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    std::string limits;
    for (const auto& [resource, name] : {std::pair(RLIMIT_AS, "-v"), std::pair(RLIMIT_DATA, "-d")}) {
      rlimit limit{};
      if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        limits += fmt::format(", but ulimit {} allows this process {:.2f} in all", name, gib(limit.rlim_cur));
    }
    fail<MemoryError>("buffer", "the system cannot give {} bytes of memory ({:.2f} GiB are free{})", bytes,
                      free_bytes / (1 << 30), limits);
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

void* allocate(Device device, size_t bytes) {
  if (bytes == 0 || device.type == DeviceType::meta) return nullptr;
  void* data = device.type == DeviceType::cuda ? cuda::allocate(device.index, bytes) : allocate_host(bytes);
  hold(device, bytes);
  return data;
}

}  // namespace

HeldMemory held_memory(Device device) {
  const Held& held = held_on(device);
  return {.now = held.now, .most = held.most};
}

void forget_most_held(Device device) {
  Held& held = held_on(device);
  held.most = held.now.load();
}

Buffer::Buffer(Device device, size_t bytes) : Buffer(allocate(device, bytes), {device, bytes}) {}

Buffer Buffer::pinned(Device device, size_t bytes) {
  if (device.type != DeviceType::cuda || bytes == 0) return Buffer({DeviceType::cpu, 0}, bytes);
  return Buffer(cuda::allocate_pinned(bytes), {device, bytes, true});
}

void Buffer::Release::operator()(void* data) const noexcept {
  if (is_pinned) return cuda::release_pinned(data);
  hold(device, -static_cast<int64_t>(bytes));
  if (device.type == DeviceType::cuda) {
    cuda::release(device.index, data);
  } else {
    munmap(data, bytes);
  }
}

}  // namespace ottava
