#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "parallel/comm/host_communicator.h"

namespace ottava::threads {

/// What the ranks of one process share: a lock, the failure that stops them all, and the meeting points of
/// groups.
class World {
 public:
  explicit World(int size) : states(static_cast<size_t>(size)) {}

  /// Stops every rank with this message; only the first counts.
  void abort(const std::string& reason);
  /// blame() over the records of all ranks.
  std::string explain() const;

  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;     ///< empty while all is well
  bool announced = false;  ///< abort() has told the ranks
  std::vector<std::shared_ptr<RankState>> states;

  /// Where one group meets.
  struct Meeting {
    explicit Meeting(int n) : size(n), published(static_cast<size_t>(n)) {}
    int size;
    std::vector<std::span<const CollectiveCall>> published;  ///< by rank, from one arrival to the next
    int arrived = 0;
    uint64_t generation = 0;
    int copying = 0;  ///< ranks that read other ranks' buffers right now
    struct Parcel {
      Tensor tensor;
      std::string label;
      bool taken = false;
    };
    /// by (source, destination), in order of sending
    std::map<std::pair<int, int>, std::deque<Parcel*>> parcels;
  };
  std::map<std::string, std::shared_ptr<Meeting>> meetings;
};

std::shared_ptr<HostTransport> make_transport(std::shared_ptr<World> world, std::shared_ptr<RankState> state,
                                              const std::string& axis, const std::vector<int>& world_ranks,
                                              int rank, int ordinal);

}  // namespace ottava::threads
