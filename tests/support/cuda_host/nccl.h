#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "streams.h"

// NCCL for the host execution layer: ranks are host threads, each with a GPU of its own. What the files
// share.
namespace ottava::cuda_host {

enum class NcclKind : uint8_t { all_reduce, reduce_scatter, all_gather, send, recv };

/// One call as its rank made it.
struct NcclCall {
  NcclKind kind;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  size_t count = 0;  ///< as NCCL counts: of the block for reduce_scatter and all_gather
  int peer = 0;      ///< destination or source
  const void* send = nullptr;
  void* recv = nullptr;
  bool in_graph = false;  ///< for NCCL a property of the collective, which all ranks must share
};

/// A call as seen by all ranks that take part: it moves data once all of them have arrived.
struct NcclOperation {
  std::vector<NcclCall> calls;  ///< by rank; send and recv: sender, receiver
  unsigned arrived = 0;
  bool is_done = false;
  char order[8];  ///< ranks before the operation, and after it
};

size_t nccl_size_of(ncclDataType_t type);
/// Moves and adds, in rank order, bf16 in f32. All user memory is touched through memcpy and memset, which
/// the sanitizers see as the work of the stream that runs it.
void run_operation(const NcclOperation& operation);
/// Makes NaN of what the rank receives: nothing may read it between the start of a call and its end.
void spoil_result(const NcclCall& call, int rank, int ranks);
/// Why NCCL would refuse the call (or never end it), or null.
const char* objection(const NcclCall& call, int rank, int ranks, int gpu);
/// Whether two ranks make the same collective, both in a graph or both not.
bool agree(const NcclCall& a, const NcclCall& b);

}  // namespace ottava::cuda_host
