#include "apps/predict/decided_step.h"

#include <algorithm>
#include <iterator>

#include "apps/predict/nccl_memory.h"
#include "apps/predict/sample_step.h"

namespace ottava {

int64_t snapshot_beside(const Experiment& e, Device device, int role) {
  return device.is_gpu() ? 0 : snapshot_bytes(e, coordinates_of_role(e, role));
}

Decided<std::vector<StepPlan>> decided_step(const Experiment& given, Device device,
                                            std::optional<double> limit_gib, const Machine* machine) {
  return decide_and_record(
      given, device, limit_gib,
      [&](const TrainingShape& shape) { return sample_roles(shape, device, given.mesh); },
      [&](const std::vector<StepPlan>& roles) {
        int64_t most = 0;
        for (int role = 0; role < std::ssize(roles); ++role)
          most = std::max(most, roles[role].memory.total_bytes() + snapshot_beside(given, device, role));
        return most;
      },
      [&](const std::vector<StepPlan>& roles) {
        int64_t most = 0;
        for (const StepPlan& role : roles)
          most = std::max(most, machine ? nccl_memory(role.connections, *machine).bytes() : 0);
        return most;
      });
}

}  // namespace ottava
