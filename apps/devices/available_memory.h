#pragma once

#include <cstdint>
#include <string>

#include "core/stream.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// Memory that a GPU's libraries take once a process uses it: kernels of cuBLASLt that are loaded at first
/// use, NCCL's buffers, graphs. It is never part of a plan and always kept free for them.
constexpr int64_t kGpuLibraryBytes = int64_t{1} << 30;

/// The part that each of so many ranks may take of a GPU's free bytes: an even one, minus kGpuLibraryBytes; 0
/// if there are not even these.
int64_t share_of_gpu(int64_t free_bytes, int64_t ranks);

/// Bytes that this rank may take on its device, an even share of what the ranks on it have together. On a
/// GPU: share_of_gpu() of its free memory. On a CPU: of what new allocations can have without swapping and
/// within the limits of a container or batch job, ulimit -v and -d included. Every rank of `control` makes
/// the call.
int64_t memory_for_rank(Device device, Communicator& control);

/// How many ranks share what has this name, as the memory of a machine has its host's. Every rank of
/// `control` makes the call, and none returns before all have.
int64_t ranks_that_share(const std::string& name, Communicator& control);

/// Bytes of the GPU that are in use, by any process.
int64_t gpu_bytes_in_use(Device device);
/// What a rank has taken of its GPU: the plan's block, and memory besides, which is negative if other
/// programs gave back more meanwhile.
struct GpuMemory {
  int64_t plan_bytes = 0, besides_bytes = 0;
};
/// The same as a line for people, to be logged after the first steps.
std::string gpu_memory_text(const GpuMemory& memory);

}  // namespace ottava
