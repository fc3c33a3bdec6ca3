#include "core/error.h"
#include "parallel/comm/nccl/nccl_communicator.h"

namespace ottava::nccl {

bool available() { return false; }

void require_library() {
  fail<CommError>(
      "nccl", "this binary was built without NCCL: use comm.backend mpi, or build with nccl.h and libnccl");
}

std::unique_ptr<Communicator> make_world(Bootstrap&, std::shared_ptr<RankState>, WorldOptions) {
  require_library();
  return nullptr;
}

}  // namespace ottava::nccl
