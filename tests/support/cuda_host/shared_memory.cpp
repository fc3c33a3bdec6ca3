#include <cstdlib>
#include <cstring>

#include "block.h"
#include "sanitizer.h"

namespace ottava::cuda_host {
namespace {

void* maker = nullptr;       // never acquires: what it makes orders nothing
void* undertaker = nullptr;  // never releases: may be after everything

void* make(size_t bytes, size_t alignment) {
  void* data = nullptr;
  if (posix_memalign(&data, alignment, bytes) != 0) std::abort();
  std::memset(data, 0xff, bytes);
  return data;
}

// Cells: one for the making itself, two for the barrier, two for every lane group (16 bytes each).
size_t order_bytes(const Block& b) { return 16 * (2 + (b.thread_count + kWarp - 1) / kWarp * Warp::kGroups); }

}  // namespace

void open_shared(Block& b, size_t dynamic_bytes) {
  if (!maker) {
    maker = make_identity();
    undertaker = make_identity();
  }
  b.shared_count = 0;
  b.dynamic_bytes = dynamic_bytes;
  b.static_bytes = 0;
  as_identity(maker, [&] {
    b.dynamic = dynamic_bytes ? static_cast<char*>(make(dynamic_bytes, 1024)) : nullptr;
    b.order = static_cast<char*>(make(order_bytes(b), 64));
    release(b.order);  // the threads' writes come after the making
  });
}

void close_shared(Block& b) {
  as_identity(undertaker, [&] {
    acquire(b.grid_order->done);
    acquire(b.order);  // the making, too, if no thread used it
    for (unsigned i = 0; i < b.shared_count; ++i) {
      acquire(b.shared[i].order);
      std::free(b.shared[i].data);
    }
    std::free(b.dynamic);
    std::free(b.order);
  });
}

char* block_order(Block& b) { return b.order + 16; }
char* group_order(Block& b, const Warp& warp, const LaneGroup& group) {
  auto index = (&warp - b.warps) * Warp::kGroups + (&group - warp.groups);
  return b.order + 16 * (2 + index);
}

void* shared_array(const void* key, size_t bytes, const Site& site) {
  SharedArray* found = block.shared;
  SharedArray* end = block.shared + block.shared_count;
  while (found != end && found->key != key) ++found;
  if (found == end) {
    if (block.shared_count == kMaxShared) fail_kernel(site, "more than %u shared arrays", kMaxShared);
    block.static_bytes += bytes;
    if (block.dynamic_bytes > 0 && block.static_bytes > block.static_limit) {
      fail_kernel(site, "%zu bytes of static shared memory beside dynamic: launch() leaves room for %zu",
                  block.static_bytes, block.static_limit);
    }
    if (block.static_bytes + block.dynamic_bytes > block.shared_limit) {
      fail_kernel(site, "%zu bytes of static shared memory and %zu of dynamic: %zu together are allowed",
                  block.static_bytes, block.dynamic_bytes, block.shared_limit);
    }
    block.shared_count++;
    as_identity(maker, [&] {
      *found = {key, make(bytes, 128), bytes, {}};
      release(found->order);
    });
  }
  acquire(found->order);
  return found->data;
}

void* dynamic_shared() {
  acquire(block.order);
  return block.dynamic;
}

void check_shared(const void* p, size_t bytes, const Site& site) {
  const char* first = static_cast<const char*>(p);
  auto inside = [&](const void* data, size_t size) {
    const char* begin = static_cast<const char*>(data);
    return begin && first >= begin && first + bytes <= begin + size;
  };
  bool found = inside(block.dynamic, block.dynamic_bytes);
  for (unsigned i = 0; i < block.shared_count; ++i)
    found |= inside(block.shared[i].data, block.shared[i].bytes);
  if (!found) fail_kernel(site, "address %p (+%zu bytes) is not in this block's shared memory", p, bytes);
}

void push_copy(const AsyncCopy& copy, const Site& site) {
  GpuThread& thread = self();
  auto misaligned = [&](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % static_cast<unsigned>(copy.bytes) != 0;
  };
  if (misaligned(copy.destination) || misaligned(copy.source)) {
    fail_kernel(site, "cp.async: an address is not aligned to %d bytes", copy.bytes);
  }
  check_shared(copy.destination, static_cast<size_t>(copy.bytes), site);
  if (thread.copy_count == kMaxCopies)
    fail_kernel(site, "cp.async: more than %u copies of one thread pending", kMaxCopies);
  AsyncCopy& slot = thread.copies[(thread.first_copy + thread.copy_count++) % kMaxCopies];
  slot = copy;
  slot.group = thread.open_group;
  thread.site = site;
}

void commit_copies() { self().open_group++; }

bool next_copy(unsigned pending, AsyncCopy& copy) {
  GpuThread& thread = self();
  if (thread.copy_count == 0) return false;
  const AsyncCopy& oldest = thread.copies[thread.first_copy];
  if (oldest.group + pending >= thread.open_group) return false;
  copy = oldest;
  thread.first_copy = (thread.first_copy + 1) % kMaxCopies;
  thread.copy_count--;
  return true;
}

}  // namespace ottava::cuda_host
