#pragma once

#include <cstdint>
#include <string>

#include "core/device.h"
#include "parallel/comm/communicator.h"
#include "parallel/ranks/launch.h"
#include "parallel/sharding/mesh.h"
#include "parallel/sharding/parallelism_config.h"

namespace ottava {

/// How a GPU's SMs are divided between a step's matrix products and the collectives beside them
/// (comm.sm_budget). The two numbers never add up to more than the GPU has.
struct SmBudget {
  /// CTAs of a call of NCCL's, one to an SM; 0: as NCCL chooses. Calls of several lanes may run at once.
  int collectives = 0;
  int products = 0;    ///< SMs for which products are planned; 0: all
  std::string reason;  ///< for people: "16 of 132 SMs ...", "off: ..."
};

/// To be called before the ranks are connected. Throws ConfigError for a budget on a CPU, for one that leaves
/// products no SMs, and if NCCL's own variables, which would take precedence, are set.
void check_sm_budget(int64_t wish, Device device, const Environment& environment = process_environment());

/// Whether the NCCL kernels of all lanes (parallel/comm/lane.h) that these degrees use may take more SMs than
/// a GPU with `sms` of them has. One that waits for its last blocks may then hold up another, which on
/// another rank holds up the first, unless GPUs start them in the same order.
bool may_crowd(const ParallelismConfig& parallelism, int64_t sm_budget, int sms);

/// What a checked budget means for this world and mesh.
SmBudget decide_sm_budget(int64_t wish, Device device, const Communicator& world, const Mesh& mesh);

}  // namespace ottava
