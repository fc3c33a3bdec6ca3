#pragma once

#include <memory>

#include "parallel/bootstrap.h"

/// NCCL as transport: CUDA tensors between GPUs, one rank per GPU.
namespace ottava::nccl {

/// Whether this binary was built with NCCL.
bool available();

/// The communicator of all ranks of `bootstrap`, on GPU `gpu` of this process. Calls are enqueued on a stream of its own,
/// after the caller's work and before what follows Request::wait; the host does not block. Throws CommError.
std::unique_ptr<Communicator> make_world(Bootstrap& bootstrap, std::shared_ptr<RankState> state, int gpu);

}  // namespace ottava::nccl
