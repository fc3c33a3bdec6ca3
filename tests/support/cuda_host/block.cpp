#include "block.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "sanitizer.h"
#include "settings.h"

// Code that runs on a fiber must not allocate nor call memmove and its like: the thread sanitizer sees those
// calls even from code that it does not instrument, and would take them for the kernel's.
//
// A block's threads are fibers of one OS thread. A fiber that has to wait switches straight to the next
// runnable one.
namespace ottava::cuda_host {

ThreadView* this_thread = nullptr;
BlockView* this_block = nullptr;
Block block;

namespace {

constexpr size_t kStackBytes = 256 * 1024;  // mapped lazily: 8 KiB are touched as a rule

// A fiber keeps the order it has seen from block to block. For the race detector neighbouring blocks and
// different streams therefore run on different fibers; its runtime has 8128 identities, hence only two kinds
// of stream.
constexpr unsigned kColors = kThreadSanitizer ? 3 : 1, kSlots = kThreadSanitizer ? 2 : 1;
std::vector<GpuThread*> pools[kSlots][kColors];
unsigned next_color = 0;
Fiber host;
char fence_order[8];

void push_ready(GpuThread* thread) {
  block.ready[(block.ready_head + block.ready_count++) % kMaxThreads] = thread;
}

void resume(GpuThread* next) {
  GpuThread* from = &self();
  if (from == next) return;
  this_thread = next;
  switch_fiber(from->fiber, next->fiber);
}

void leave_to_host() {
  GpuThread* from = &self();
  this_thread = nullptr;
  switch_fiber(from->fiber, host);
}

[[noreturn]] void report_deadlock() {
  char text[600];
  int used = 0;
  const GpuThread* shown[3];
  int count = 0;
  for (unsigned i = 0; i < block.thread_count && count < 3; ++i) {
    const GpuThread* t = block.threads[i];
    bool known = t->done;
    for (int k = 0; k < count; ++k) known |= shown[k]->site.line() == t->site.line();
    if (known) continue;
    used += std::snprintf(text + used, sizeof text - static_cast<size_t>(used),
                          "%sthread %u waits in %s at %s:%u", count ? ", " : "", t->rank, t->waits_in,
                          t->site.file_name(), t->site.line());
    used = std::min(used, static_cast<int>(sizeof text) - 1);
    shown[count++] = t;
  }
  fail_kernel(shown[0]->site, "deadlock: %u of %u threads wait and none can run: %s", block.alive,
              block.thread_count, text);
}

// The calling fiber waits or is done: another one runs.
void run_next() {
  if (block.ready_count == 0) {
    if (block.alive == 0) return leave_to_host();
    report_deadlock();
  }
  GpuThread*& head = block.ready[block.ready_head % kMaxThreads];
  if (settings().order == Order::random) {
    unsigned chosen =
        (block.ready_head + static_cast<unsigned>(next_random() >> 33) % block.ready_count) % kMaxThreads;
    std::swap(head, block.ready[chosen]);
  }
  GpuThread* next = head;
  block.ready_head = (block.ready_head + 1) % kMaxThreads;
  block.ready_count--;
  resume(next);
}

void wait_in(const char* name, const Site& site) {
  self().waits_in = name;
  self().site = site;
  run_next();
}

bool same_place(const Site& a, const Site& b) {
  bool same_file = a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0;
  return a.line() == b.line() && same_file;
}

void open_barrier() {
  block.vote_results[block.generation % 2] = block.votes;
  block.votes = {};
  block.generation++;
  unsigned waiting = block.arrived;
  block.arrived = 0;
  for (unsigned i = 0; i < waiting; ++i) {
    GpuThread* thread = block.at_barrier[settings().order == Order::reverse ? waiting - 1 - i : i];
    if (thread != this_thread) push_ready(thread);
  }
}

void complete(Warp& warp, LaneGroup& group) {
  if (group.function) group.function(group.payloads, group.arrived, group.site);
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    bool waits = (group.arrived >> lane & 1) && warp.lanes[lane] != this_thread;
    if (waits) push_ready(warp.lanes[lane]);
  }
  group.arrived = group.mask = 0;
  group.generation++;
}

bool is_complete(const Warp& warp, const LaneGroup& group) {
  return !(group.mask & warp.alive & ~group.arrived);
}

void finish_thread() {
  GpuThread& thread = self();
  if (thread.copy_count)
    fail_kernel(thread.site, "thread %u exits with cp.async copies pending", thread.rank);
  thread.done = true;
  block.alive--;
  Warp& warp = *thread.warp;
  warp.alive &= ~(1u << thread.lane);
  // Exited threads take part in nothing: what waited only for this one goes on.
  for (LaneGroup& group : warp.groups) {
    if (group.arrived && is_complete(warp, group)) complete(warp, group);
  }
  if (block.alive && block.arrived == block.alive) open_barrier();
}

void thread_main() {
  fiber_entered();
  for (;;) {
    acquire(block.grid_order->start);
    block.call->run(block.call->arguments);
    release(block.grid_order->done);
    finish_thread();
    run_next();
  }
}

std::vector<GpuThread*>& pool_for_block(unsigned slot, unsigned threads) {
  auto& pool = pools[slot % kSlots][next_color++ % kColors];
  while (pool.size() < threads) {
    pool.push_back(new GpuThread);
    create_fiber(pool.back()->fiber, kStackBytes, thread_main);
    reset_fiber(pool.back()->fiber, thread_main, pool.size());
  }
  return pool;
}

void place_thread(GpuThread& thread, unsigned rank, const dim3& dim) {
  thread.rank = rank;
  thread.lane = rank % kWarp;
  thread.index = {rank % dim.x, rank / dim.x % dim.y, rank / (dim.x * dim.y)};
  thread.warp = &block.warps[rank / kWarp];
  thread.warp->lanes[thread.lane] = &thread;
  thread.warp->alive |= 1u << thread.lane;
  thread.done = false;
  thread.first_copy = thread.copy_count = thread.open_group = 0;
}

bool run_block(uint3 index, const Geometry& geometry, const Call& call, GridOrder& order, unsigned slot) {
  const dim3& dim = geometry.block;
  unsigned count = dim.x * dim.y * dim.z;
  auto& pool = pool_for_block(slot, count);
  static_cast<BlockView&>(block) = {index, dim, geometry.grid};
  block.call = &call;
  block.grid_order = &order;
  block.threads = pool.data();
  block.thread_count = block.alive = count;
  block.arrived = block.generation = block.ready_head = block.ready_count = 0;
  block.votes = {};
  block.failed = false;
  for (unsigned w = 0; w < (count + kWarp - 1) / kWarp; ++w) {
    block.warps[w].alive = 0;
    for (LaneGroup& group : block.warps[w].groups) group.arrived = group.mask = group.generation = 0;
  }
  block.shared_limit = geometry.shared_limit;
  block.static_limit = geometry.static_limit;
  open_shared(block, geometry.shared_bytes);
  for (unsigned i = 0; i < count; ++i) {
    unsigned rank = settings().order == Order::reverse ? count - 1 - i : i;
    place_thread(*pool[rank], rank, dim);
    push_ready(pool[rank]);
  }
  this_block = &block;
  if (settings().order == Order::random) {
    std::swap(block.ready[0], block.ready[static_cast<unsigned>(next_random() >> 33) % count]);
  }
  GpuThread* first = block.ready[block.ready_head++];
  block.ready_count--;
  adopt_this_thread(host);
  this_thread = first;
  switch_fiber(host, first->fiber);
  this_thread = nullptr;
  this_block = nullptr;
  if (block.failed) {  // its threads stand anywhere in the kernel
    for (size_t i = 0; i < pool.size(); ++i) {
      as_identity(pool[i]->fiber.identity, [&] { release(order.done); });
      reset_fiber(pool[i]->fiber, thread_main, i);
    }
  }
  close_shared(block);
  return !block.failed;
}

}  // namespace

void fail_kernel(const Site& site, const char* format, ...) {
  char text[900];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (!this_thread) {
    std::fprintf(stderr, "cuda_host: %s:%u: %s (outside a kernel)\n", site.file_name(), site.line(), text);
    std::abort();
  }
  const uint3 &b = block.index, &t = this_thread->index;
  explain("%s:%u: %s [block (%u,%u,%u) thread (%u,%u,%u)]", site.file_name(), site.line(), text, b.x, b.y,
          b.z, t.x, t.y, t.z);
  block.failed = true;
  leave_to_host();
  std::abort();  // an abandoned fiber is never resumed
}

int block_barrier(const char* name, int predicate, Vote vote, const Site& site) {
  unsigned generation = block.generation;
  if (block.arrived == 0) {
    block.barrier_site = site;
    block.barrier_name = name;
  } else if (!same_place(block.barrier_site, site)) {
    fail_kernel(site, "divergent %s: %u other threads of the block wait in %s at %s:%u", name, block.arrived,
                block.barrier_name, block.barrier_site.file_name(), block.barrier_site.line());
  }
  block.votes.any |= predicate != 0;
  block.votes.all &= predicate != 0;
  block.votes.count += predicate != 0;
  // Two objects in turn: what a fast thread releases on its way into the next barrier must not reach a slow
  // one.
  char* order = block_order(block) + 8 * (generation % 2);
  release(order);
  block.at_barrier[block.arrived++] = &self();
  if (block.arrived == block.alive) {
    open_barrier();
  } else {
    wait_in(name, site);
  }
  acquire(order);
  const Votes& result = block.vote_results[generation % 2];
  return vote == Vote::any ? result.any : vote == Vote::all ? result.all : result.count;
}

void warp_collective(const char* name, unsigned mask, bool orders_memory, void* payload,
                     LaneFunction function, const Site& site) {
  GpuThread& thread = self();
  Warp& warp = *thread.warp;
  if (!(mask >> thread.lane & 1))
    fail_kernel(site, "%s: lane %u is not in its own mask %08x", name, thread.lane, mask);
  LaneGroup *group = nullptr, *idle = nullptr;
  for (LaneGroup& candidate : warp.groups) {
    if (!candidate.arrived) {
      idle = &candidate;
    } else if (candidate.mask == mask) {
      group = &candidate;
    } else if (candidate.mask & mask & warp.alive) {
      fail_kernel(site, "%s with mask %08x while lanes %08x wait with mask %08x in %s at %s:%u", name, mask,
                  candidate.arrived, candidate.mask, candidate.name, candidate.site.file_name(),
                  candidate.site.line());
    }
  }
  if (group && (group->function != function || !same_place(group->site, site))) {
    fail_kernel(site, "%s: lane %u diverged: lanes %08x of its mask wait in %s at %s:%u", name, thread.lane,
                group->arrived, group->name, group->site.file_name(), group->site.line());
  }
  if (!group) {
    if (!idle) fail_kernel(site, "%s: more than %u masks at once in one warp", name, Warp::kGroups);
    group = idle;
    group->mask = mask;
    group->name = name;
    group->function = function;
    group->site = site;
  }
  group->payloads[thread.lane] = payload;
  group->arrived |= 1u << thread.lane;
  char* order = group_order(block, warp, *group) + 8 * (group->generation % 2);
  if (orders_memory) release(order);
  if (is_complete(warp, *group)) {
    complete(warp, *group);
  } else {
    wait_in(name, site);
  }
  if (orders_memory) acquire(order);
}

void fence() {
  acquire(fence_order);
  release(fence_order);
}

bool run_grid(const Geometry& geometry, const Call& call, GridOrder& order, unsigned slot) {
  const dim3& grid = geometry.grid;
  uint64_t count = uint64_t{grid.x} * grid.y * grid.z;
  // Blocks in a shuffled order; grids in tests are small enough for a list.
  std::unique_ptr<uint64_t[]> shuffled;
  if (settings().order == Order::random && count > 1) {
    shuffled = std::make_unique<uint64_t[]>(count);
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t j = next_random() % (i + 1);
      shuffled[i] = shuffled[j];
      shuffled[j] = i;
    }
  }
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t b = shuffled ? shuffled[i] : settings().order == Order::reverse ? count - 1 - i : i;
    uint3 index{static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / (uint64_t{grid.x} * grid.y))};
    if (!run_block(index, geometry, call, order, slot)) return false;
  }
  return true;
}

}  // namespace ottava::cuda_host
