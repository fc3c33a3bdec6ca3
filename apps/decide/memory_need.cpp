#include "apps/decide/memory_need.h"

#include <algorithm>
#include <vector>

#include "apps/devices/available_memory.h"
#include "apps/step/step_plan.h"

namespace ottava {

std::vector<MemoryNeed> memory_needs(const Experiment& e, const TrainingShape& shape, RankGroups& ranks,
                                     Device device) {
  const int64_t snapshot = device.is_gpu() ? 0 : snapshot_bytes(e, ranks.coordinates);
  const int64_t mine[2] = {record_step(shape, device, ranks).memory.total_bytes() + snapshot,
                           memory_for_rank(device, *ranks.control)};
  std::vector<int64_t> all(2 * ranks.control->size());
  Stream host = Stream::cpu();
  ranks.control
      ->all_gather(host, {.send = view_of(const_cast<int64_t*>(mine), {2}),
                          .recv = view_of(all.data(), {std::ssize(all)}),
                          .label = "memory"})
      .wait(host);
  std::vector<std::vector<MemoryNeed>> by_place(e.mesh.size(MeshAxis::pp));
  for (int rank = 0; rank < ranks.control->size(); ++rank) {
    by_place[e.mesh.coordinate(MeshAxis::pp, rank)].push_back(
        MemoryNeed::of_device(device, {all[2 * rank], all[2 * rank + 1]}));
  }
  std::vector<MemoryNeed> needs;
  for (const std::vector<MemoryNeed>& in_place : by_place) needs.push_back(tightest(in_place));
  return needs;
}

MemoryNeed tightest(std::span<const MemoryNeed> needs) {
  return *std::ranges::min_element(needs, {}, &MemoryNeed::spare);
}

}  // namespace ottava
