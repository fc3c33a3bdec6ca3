#include "parallel/ranks/local_place.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/text/counted.h"
#include "parallel/ranks/master.h"

namespace ottava {

Launch with_local_place(Launch launch, double timeout_seconds, const std::string& host,
                        const std::function<void()>& while_waiting) {
  const auto said = std::exchange(launch.local_place, Launch::LocalPlace::known);
  if (said == Launch::LocalPlace::known || launch.master.address.empty()) return launch;
  MasterBootstrap bootstrap(launch.master, {launch.rank, launch.world_size}, timeout_seconds, while_waiting);
  const std::vector<std::string> hosts = bootstrap.all_gather(host);
  launch.local_size = static_cast<int>(std::ranges::count(hosts, host));
  if (said == Launch::LocalPlace::unknown)
    launch.local_rank = static_cast<int>(std::count(hosts.begin(), hosts.begin() + launch.rank, host));
  if (launch.local_rank >= launch.local_size) {
    fail<ConfigError>(
        "launch",
        "LOCAL_RANK of rank {} is {}, but machine {} has {}: set LOCAL_RANK to the rank's number on its "
        "machine, or leave it out",
        launch.rank, launch.local_rank, host, counted(launch.local_size, "rank"));
  }
  return launch;
}

}  // namespace ottava
