#include "apps/predict/decided_step.h"

#include <iterator>

#include "apps/predict/nccl_memory.h"
#include "apps/predict/sample_step.h"

namespace ottava {

int64_t snapshot_beside(const Experiment& e, Device device, int role) {
  return device.is_gpu() ? 0 : snapshot_bytes(e, coordinates_of_role(e, role));
}

std::vector<int64_t> snapshots_beside(const Experiment& e, Device device) {
  std::vector<int64_t> out;
  for (int role = 0; role < e.mesh.size(MeshAxis::pp); ++role)
    out.push_back(snapshot_beside(e, device, role));
  return out;
}

Decided<std::vector<StepPlan>> decided_step(const Experiment& given, Device device,
                                            std::optional<double> limit_gib, const Machine* machine,
                                            Packing packing) {
  RoleRecordings recordings(device, given.mesh, packing);
  return decide_and_record(
      given, device, limit_gib, [&](const TrainingShape& shape) { return recordings.of(shape); },
      [&](const std::vector<StepPlan>& roles) {
        std::vector<RankBytes> of_ranks;
        for (int role = 0; role < std::ssize(roles); ++role) {
          const StepPlan& plan = roles[role];
          of_ranks.push_back({.step = plan.memory.total_bytes() + snapshot_beside(given, device, role),
                              .besides = machine ? nccl_memory(plan.connections, *machine).bytes() : 0});
        }
        return of_ranks;
      });
}

}  // namespace ottava
