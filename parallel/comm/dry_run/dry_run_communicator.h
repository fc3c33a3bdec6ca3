#pragma once

#include "parallel/comm/communicator.h"

namespace ottava {

/// One rank of a world that does not exist: calls are checked and counted, move no data and are done at once.
/// With a `meta` stream this plans a step for any number of ranks on one machine.
std::unique_ptr<Communicator> make_dry_run_world(int rank, int world_size);

}  // namespace ottava
