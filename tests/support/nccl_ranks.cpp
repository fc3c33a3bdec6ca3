#include "tests/support/nccl_ranks.h"

#include <algorithm>

#include "core/cuda/runtime.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "tests/support/thread_ranks.h"

namespace ottava::test {

void run_nccl_ranks(const NcclRanks& options,
                    const std::function<void(Communicator& control, Communicator& world)>& body) {
  run_thread_ranks({.ranks = options.ranks, .timeout_seconds = options.timeout_seconds},
                   [&](Communicator& control) {
                     CommunicatorBootstrap bootstrap(control);
                     auto world = nccl::make_world(bootstrap, control.shared_state(),
                                                   {.gpu = control.rank(), .max_ctas = options.max_ctas});
                     control.stats().reset();
                     body(control, *world);
                   });
}

int nccl_ranks(int wanted) { return nccl::available() ? std::min(wanted, cuda::device_count()) : 0; }

}  // namespace ottava::test
