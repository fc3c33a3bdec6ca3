#include "memory.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

#include "sanitizer.h"

namespace ottava::cuda_host {
namespace {

struct Allocation {
  size_t bytes;
  MemoryKind kind;
  int gpu;
};
std::map<uintptr_t, Allocation> table;
std::map<int, size_t> in_use;

std::map<uintptr_t, Allocation>::const_iterator find(const void* p) {
  auto address = reinterpret_cast<uintptr_t>(p);
  auto it = table.upper_bound(address);
  if (it == table.begin()) return table.end();
  --it;
  // Half-open: a host array may start exactly where a device buffer ends.
  return address < it->first + it->second.bytes ? it : table.end();
}

void guard(bool on) {
  for (const auto& [address, allocation] : table) {
    if (allocation.kind != MemoryKind::device) continue;
    auto* p = reinterpret_cast<void*>(address);
    on ? poison(p, allocation.bytes) : unpoison(p, allocation.bytes);
  }
}

}  // namespace

void* allocate(size_t bytes, MemoryKind kind, int gpu) {
  void* p = nullptr;
  if (posix_memalign(&p, 256, bytes) != 0) return nullptr;
  std::memset(p, 0xff, bytes);
  table[reinterpret_cast<uintptr_t>(p)] = {bytes, kind, gpu};
  if (kind == MemoryKind::device) {
    in_use[gpu] += bytes;
    poison(p, bytes);
  }
  return p;
}

bool release(void* p, MemoryKind kind) {
  auto it = table.find(reinterpret_cast<uintptr_t>(p));
  if (it == table.end() || it->second.kind != kind) return false;
  if (kind == MemoryKind::device) {
    in_use[it->second.gpu] -= it->second.bytes;
    unpoison(p, it->second.bytes);
  }
  table.erase(it);
  std::free(p);
  return true;
}

MemoryKind kind_of(const void* p) {
  auto it = find(p);
  return it == table.end() ? MemoryKind::none : it->second.kind;
}

size_t bytes_behind(const void* p) {
  auto it = find(p);
  return it == table.end() ? 0 : it->first + it->second.bytes - reinterpret_cast<uintptr_t>(p);
}

int gpu_of(const void* p) {
  auto it = find(p);
  return it == table.end() ? -1 : it->second.gpu;
}

size_t device_bytes_in_use(int gpu) { return in_use[gpu]; }

DeviceAccess::DeviceAccess() { guard(false); }
DeviceAccess::~DeviceAccess() { guard(true); }

}  // namespace ottava::cuda_host
