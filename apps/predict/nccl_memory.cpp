#include "apps/predict/nccl_memory.h"

#include <algorithm>

namespace ottava {
namespace {

// By its links: other GPUs of these generations are on PCIe, or joined in pairs.
bool has_nvlink_switch(const DeviceTable& device) {
  constexpr int kHopper = 90, kLastBlackwell = 103;
  constexpr double kSwitchGbPerS = 200;
  return device.capability >= kHopper && device.capability <= kLastBlackwell &&
         device.link_gb_per_s >= kSwitchGbPerS;
}

int nvls_channels(const Machine& machine, bool crosses_machines) {
  constexpr int kHopper = 16, kBlackwell = 24, kBlackwellAcrossMachines = 32;
  const int wanted = machine.device.capability < 100 ? kHopper
                     : crosses_machines              ? kBlackwellAcrossMachines
                                                     : kBlackwell;
  return std::min(machine.nccl_channels, wanted);
}

}  // namespace

NcclMemory nccl_memory(const RankConnections& connections, const Machine& machine) {
  constexpr int64_t kChannelBytes = int64_t{14} << 20, kNeighboursOfCommunicator = 2,
                    kNvlsBytes = 2 * 8 * (int64_t{128} << 10);
  NcclMemory memory{.bytes_of_neighbour = machine.nccl_channels * kChannelBytes};
  memory.bytes_of_communicator = kNeighboursOfCommunicator * memory.bytes_of_neighbour;
  if (machine.nccl_channels == 0) return memory;
  const auto machine_of = [&](int rank) { return rank / machine.ranks_per_node; };
  const auto is_near = [&](int peer) { return machine_of(peer) == machine_of(connections.rank); };
  for (const RankConnections::Group& group : connections.groups) {
    if (group.of.ranks.size() == 1) continue;
    ++memory.communicators;
    const int64_t here = std::ranges::count_if(group.of.ranks, is_near);
    if (here > 2 && has_nvlink_switch(machine.device))
      memory.nvls_bytes += here * kNvlsBytes * nvls_channels(machine, here < std::ssize(group.of.ranks));
    const int64_t near = std::ranges::count_if(group.peers, is_near);
    memory.neighbours += near + (near < std::ssize(group.peers) ? 1 : 0);
  }
  return memory;
}

}  // namespace ottava
