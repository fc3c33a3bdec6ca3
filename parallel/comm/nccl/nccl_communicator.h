#pragma once

#include <memory>
#include <string>

#include "parallel/comm/bootstrap.h"

/// NCCL as transport: moves CUDA tensors between GPUs, one rank per GPU.
namespace ottava::nccl {

/// Whether this binary was built with NCCL.
bool available();
/// Throws DeviceError, naming the places searched, if NCCL is not installed here or too old, and CommError if
/// this binary was built without it.
void require_library();

struct WorldOptions {
  int gpu = 0;  ///< of this process
  /// blocks that a collective runs at once, one to an SM (comm.sm_budget); 0: as NCCL chooses
  int max_ctas = 0;
  std::string advice;  ///< added to the error if the ranks cannot be connected
};

/// The communicator of all ranks of `bootstrap`. It and what is split from it connect when made, which waits
/// for the other ranks. Calls are enqueued on a stream of their own, after the caller's work and before what
/// follows Request::wait(); the host does not block. Throws CommError.
std::unique_ptr<Communicator> make_world(Bootstrap& bootstrap, std::shared_ptr<RankState> state,
                                         WorldOptions options);

}  // namespace ottava::nccl
