#pragma once

#include <cstddef>

namespace ottava::cuda_host {

enum class MemoryKind { none, device, pinned };

/// Memory of one GPU as the runtime API gives it out: 256-byte aligned and filled with 0xFF; null when there
/// is none left.
void* allocate(size_t bytes, MemoryKind kind, int gpu);
/// False when p is not the start of an allocation of this kind.
bool release(void* p, MemoryKind kind);
/// What p points into; none for ordinary host memory.
MemoryKind kind_of(const void* p);
/// Bytes from p to the end of its allocation; 0 for ordinary host memory.
size_t bytes_behind(const void* p);
/// The GPU that p was allocated on; -1 for ordinary host memory.
int gpu_of(const void* p);
size_t device_bytes_in_use(int gpu);

/// While it lives, device memory may be touched; otherwise the address sanitizer reports it as an error of
/// host code.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
};

}  // namespace ottava::cuda_host
