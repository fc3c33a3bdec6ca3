#include "core/error.h"
#include "parallel/comm/nccl/nccl_communicator.h"

namespace ottava::nccl {

bool available() { return false; }

std::unique_ptr<Communicator> make_world(Bootstrap&, std::shared_ptr<RankState>, WorldOptions) {
  fail<CommError>(
      "nccl", "this binary was built without NCCL: use comm.backend mpi, or build with nccl.h and libnccl");
}

}  // namespace ottava::nccl
