#pragma once

#include <cstdint>
#include <string>

#include "core/stream.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// What a GPU's libraries take once a process uses it: kernels of cuBLASLt that are loaded at first use,
/// NCCL's buffers, graphs. Never part of a plan and always kept free for them.
constexpr int64_t kGpuLibraryBytes = int64_t{1} << 30;

/// Bytes that this rank may take on its device: a GPU's free memory less kGpuLibraryBytes; of the machine's,
/// what new allocations can have without swapping and within the limits of a container or batch job, shared
/// evenly among the ranks on it. Every rank of `control` makes the call.
int64_t memory_for_rank(Device device, Communicator& control);

/// Of the whole GPU, by whomever.
int64_t gpu_bytes_in_use(Device device);
/// A line for people: what a rank took of its GPU beside the plan's block, once it had taken its steps.
struct GpuMemory {
  int64_t plan_bytes = 0, besides_bytes = 0;
};
std::string gpu_memory_text(const GpuMemory& memory);

}  // namespace ottava
