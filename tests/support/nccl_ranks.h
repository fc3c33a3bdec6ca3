#pragma once

#include <functional>

#include "parallel/comm/communicator.h"

namespace ottava::test {

/// Runs body on `ranks` threads, rank r with GPU r. `control` moves host memory, `world` is NCCL's.
struct NcclRanks {
  int ranks = 1;
  double timeout_seconds = 60;
  int max_ctas = 0;
};
void run_nccl_ranks(const NcclRanks& options,
                    const std::function<void(Communicator& control, Communicator& world)>& body);

/// How many ranks NCCL can have here: GPUs of the machine, up to `wanted`; 0 without NCCL or GPU.
int nccl_ranks(int wanted);

}  // namespace ottava::test
