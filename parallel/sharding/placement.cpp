#include "parallel/sharding/placement.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/round_up.h"
#include "core/text/counted.h"
#include "core/text/listed.h"

namespace ottava {
namespace {

constexpr size_t kShown = 4;

// The first of a kind of groups that lies on more machines than it needs; empty: none does.
std::vector<int> scattered_group(const Mesh& mesh, const std::vector<std::string>& hosts, int64_t most_of_one,
                                 std::initializer_list<MeshAxis> axes) {
  std::vector<bool> is_seen(hosts.size());
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    if (is_seen[rank]) continue;
    std::map<std::string_view, int> machines;
    const std::vector<int> group = mesh.group(axes, rank);
    for (int r : group) is_seen[r] = true, ++machines[hosts[r]];
    if (std::ssize(group) == mesh.world_size()) return {};
    if (std::ssize(machines) > pieces_of(std::ssize(group), most_of_one)) return group;
  }
  return {};
}

// Of ranks that are started machine by machine: degrees that divide what each machine has leave no group on
// two.
std::string advice(const std::map<std::string_view, int64_t>& ranks_of) {
  int64_t least = ranks_of.begin()->second, most = least, common = least;
  for (const auto& [host, ranks] : ranks_of) {
    least = std::min(least, ranks);
    most = std::max(most, ranks);
    common = std::gcd(common, ranks);
  }
  if (least == most)
    return fmt::format("choose degrees that divide the {} of a machine", counted(most, "rank"));
  return fmt::format("machines have {} to {}: start as many on each{}", least, counted(most, "rank"),
                     common == 1 ? "" : fmt::format(", or choose degrees that divide {}", common));
}

}  // namespace

std::string scattered_groups(const Mesh& mesh, const std::vector<std::string>& hosts) {
  std::map<std::string_view, int64_t> ranks_of;
  int64_t most = 0, changes = 0;
  for (size_t r = 0; r < hosts.size(); ++r) {
    most = std::max(most, ++ranks_of[hosts[r]]);
    changes += r > 0 && hosts[r] != hosts[r - 1];
  }
  const bool are_together = changes + 1 == std::ssize(ranks_of);
  using enum MeshAxis;
  const auto sentence = [&](std::string_view kind, std::initializer_list<MeshAxis> axes) -> std::string {
    const std::vector<int> group = scattered_group(mesh, hosts, most, axes);
    if (group.empty()) return "";
    std::vector<std::string> machines;
    for (int r : group) machines.push_back(hosts[r]);
    std::ranges::sort(machines);
    machines.erase(std::unique(machines.begin(), machines.end()), machines.end());
    return fmt::format(
        "{}, such as ranks {}, are on {} ({}), where {} would do, so that all that they exchange crosses the "
        "network: {}",
        kind,
        listed(
            group, [](int r) { return std::to_string(r); }, kShown),
        counted(machines.size(), "machine"),
        listed(
            machines, [](const auto& name) { return name; }, kShown),
        pieces_of(std::ssize(group), most),
        are_together
            ? advice(ranks_of)
            : "start the ranks machine by machine (srun --distribution=block, mpirun --map-by slot)");
  };
  for (std::string text :
       {sentence("tensor-parallel ranks", {tp}), sentence("context-parallel ranks", {cp, tp}),
        sentence("shards of one replica", {dp_shard, cp, tp})})
    if (!text.empty()) return text;
  return "";
}

}  // namespace ottava
