#pragma once

#include <cstdint>

#include "core/stream.h"
#include "parallel/communicator.h"

namespace ottava {

/// Bytes that this rank may take on its device: a GPU's free memory; of the machine's, what new allocations
/// can have without swapping and within the limits of a container or batch job, shared evenly among the ranks on
/// it. Every rank of `control` makes the call.
int64_t memory_for_rank(Device device, Communicator& control);

}  // namespace ottava
