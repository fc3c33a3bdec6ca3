#pragma once

#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/connections.h"

namespace ottava {

/// One rank of a world that does not exist: calls are checked and counted, move no data and are done at once.
/// With a `meta` stream this plans a step for any number of ranks on one machine. `connections`, if given,
/// get what would connect the rank. Throws ConfigError for a rank that such a world does not have.
std::unique_ptr<Communicator> make_dry_run_world(int rank, int world_size,
                                                 std::shared_ptr<RankConnections> connections = {});

}  // namespace ottava
