#include "apps/config/sm_budget.h"

#include <fmt/core.h>

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "parallel/comm/connections.h"

namespace ottava {

void check_sm_budget(int64_t wish, Device device, const Environment& environment) {
  if (wish == 0) return;
  if (!device.is_gpu()) {
    fail<ConfigError>("comm", "sm_budget is {}, but the device is {}, which has no SMs: set it to 0", wish,
                      to_string(device));
  }
  if (const int all = cuda::sm_count(device.index); wish >= all) {
    fail<ConfigError>(
        "comm",
        "sm_budget is {}, but GPU {} has {} SMs, so that none would be left for matrix products: lower it",
        wish, device.index, all);
  }
  for (const char* name : {"NCCL_MAX_CTAS", "NCCL_MIN_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS"}) {
    if (const char* value = environment(name)) {
      fail<ConfigError>("comm",
                        "sm_budget is {}, but the environment has {}={}, which takes precedence in NCCL but "
                        "not in matrix products: remove one of them",
                        wish, name, value);
    }
  }
}

bool may_crowd(const ParallelismConfig& p, int64_t sm_budget, int sms) {
  int64_t lanes = 1;
  for (const int64_t degree :
       {p.tensor_parallel_degree, p.context_parallel_degree, p.pipeline_parallel_degree})
    lanes += degree > 1 ? 1 : 0;
  const int64_t blocks = sm_budget > 0 ? sm_budget : kNcclChannels;
  return lanes > 1 && lanes * blocks > sms;
}

SmBudget decide_sm_budget(int64_t wish, Device device, const Communicator& world, const Mesh& mesh) {
  if (wish == 0) return {.reason = "off: comm.sm_budget is 0"};
  if (world.size() == 1)
    return {.reason = fmt::format("off: comm.sm_budget is {}, but one rank has no collectives", wish)};
  if (world.transport() != "nccl") {
    return {.reason = fmt::format("off: comm.sm_budget is {}, but ranks exchange tensors through host memory "
                                  "({}), which takes no SMs",
                                  wish, world.transport())};
  }
  const int all = cuda::sm_count(device.index), collectives = static_cast<int>(wish);
  if (mesh.shards() * mesh.size(MeshAxis::dp_replicate) == 1) {
    return {.collectives = collectives,
            .reason = fmt::format("a call of NCCL's takes {} of {} SMs at most; products take all, since "
                                  "tensor parallel collectives are waited for",
                                  collectives, all)};
  }
  return {
      .collectives = collectives,
      .products = all - collectives,
      .reason = fmt::format("a call of NCCL's takes {} of {} SMs at most, matrix products are planned for {}",
                            collectives, all, all - collectives)};
}

}  // namespace ottava
