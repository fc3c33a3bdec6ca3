#pragma once

#include <functional>

#include "apps/decide/workbench.h"
#include "core/cost.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// Prepares a recorded transfer on these ranks, with tensors of its sizes from the bench; each call of the
/// result starts it. Messages go to the rank `distance` ahead and come from the one as far behind. Every rank
/// makes the same calls.
std::function<Request(Stream&)> prepare(const RecordedTransfer& transfer, Communicator& ranks, int distance,
                                        Workbench& bench);

}  // namespace ottava
