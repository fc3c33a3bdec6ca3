#pragma once

#include <cstdint>

#include "apps/predict/machine.h"
#include "parallel/comm/connections.h"

namespace ottava {

/// Memory of its GPU that NCCL takes for a rank besides the plan. Assumed: it was not measured with this
/// program, which several GPUs have not run yet. Each channel to a neighbour takes 14 MiB, its buffers of
/// three protocols (4 + 4.7 + 0.5 MiB) at either end and what they are rounded up to: 3.28 GB were seen for
/// messages between 8 H100, which have 7 neighbours and 32 channels (NVIDIA/nccl#1685). A communicator has as
/// many as two neighbours, in rings and in trees: 896 MiB with 32 channels, where 544 to 688 MB were seen on
/// A100 (NVIDIA/nccl#964). Messages have a neighbour in each rank of the same machine, and one in all others,
/// which share their buffers.
///
/// Where a switch adds what GPUs send (NVLink SHARP), each communicator with more than two ranks in a machine
/// has buffers for it besides: in each of 16 channels (Blackwell: 24, between machines 32) two of 8 steps of
/// 128 KiB for each of these ranks (src/transport/nvls.cc), which is what NCCL's log says on 8 H100, 256 MiB.
/// It takes them also where NCCL_ALGO is Ring. Before NCCL 2.21 they were larger.
struct NcclMemory {
  int64_t communicators = 0, neighbours = 0;  ///< neighbours: of messages
  int64_t bytes_of_communicator = 0, bytes_of_neighbour = 0;
  int64_t nvls_bytes = 0;  ///< of all communicators
  int64_t bytes() const {
    return communicators * bytes_of_communicator + neighbours * bytes_of_neighbour + nvls_bytes;
  }
};
/// None on a machine whose ranks do not communicate over NCCL.
NcclMemory nccl_memory(const RankConnections& connections, const Machine& machine);

}  // namespace ottava
