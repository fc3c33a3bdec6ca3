#pragma once

#include "execution.h"
#include "fiber.h"

namespace ottava::cuda_host {

inline constexpr unsigned kMaxThreads = 1024, kWarp = 32;
inline constexpr unsigned kMaxCopies = 512, kMaxShared = 32;

struct Warp;

/// A GPU thread: a fiber that lives on and runs one thread of many blocks, one after another.
struct GpuThread : ThreadView {
  Fiber fiber;
  Warp* warp = nullptr;
  bool done = true;
  const char* waits_in = nullptr;
  Site site;
  AsyncCopy copies[kMaxCopies];  // a ring: fibers must not allocate, the thread sanitizer would see it
  unsigned first_copy = 0, copy_count = 0, open_group = 0;
};

/// Lanes on their way into one collective.
struct LaneGroup {
  unsigned mask = 0, arrived = 0;
  const char* name = nullptr;
  LaneFunction function = nullptr;
  Site site;
  void* payloads[kWarp];
  unsigned generation = 0;
};
struct Warp {
  static constexpr unsigned kGroups = 8;  // different masks at the same time
  LaneGroup groups[kGroups];
  GpuThread* lanes[kWarp];
  unsigned alive = 0;
};

struct SharedArray {
  const void* key;
  void* data;
  size_t bytes;
  char order[8];
};

/// The addresses that stand for a grid's start and end in the race detector.
struct GridOrder {
  char start[8], done[8];
};

struct Votes {
  int any = 0, all = 1, count = 0;
};

/// The one block that runs; blocks of a grid run one after another.
struct Block : BlockView {
  const Call* call = nullptr;
  GridOrder* grid_order = nullptr;
  GpuThread** threads = nullptr;
  unsigned thread_count = 0, alive = 0;
  GpuThread* ready[kMaxThreads];
  unsigned ready_head = 0, ready_count = 0;
  Warp warps[kMaxThreads / kWarp];

  GpuThread* at_barrier[kMaxThreads];
  unsigned arrived = 0, generation = 0;
  const char* barrier_name = nullptr;
  Site barrier_site;
  Votes votes, vote_results[2];

  SharedArray shared[kMaxShared];
  unsigned shared_count = 0;
  char* dynamic = nullptr;
  size_t dynamic_bytes = 0, static_bytes = 0, shared_limit = 0, static_limit = 0;
  char* order = nullptr;  ///< fresh per block: sync objects of the barrier and of every lane group
  bool failed = false;
};
extern Block block;
inline GpuThread& self() { return *static_cast<GpuThread*>(this_thread); }

/// Makes the memory of a block under an identity that comes after no thread, and frees it under one that
/// comes after all of them, so that neither orders one block after another.
void open_shared(Block& block, size_t dynamic_bytes);
void close_shared(Block& block);
char* block_order(Block& block);
char* group_order(Block& block, const Warp& warp, const LaneGroup& group);

/// Runs all blocks of one grid on the calling OS thread; false when a kernel error abandoned it. `slot` tells
/// streams apart in the race detector.
bool run_grid(const Geometry& geometry, const Call& call, GridOrder& order, unsigned slot);

}  // namespace ottava::cuda_host
