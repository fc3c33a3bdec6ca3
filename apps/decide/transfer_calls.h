#pragma once

#include <functional>

#include "apps/decide/workbench.h"
#include "core/cost.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// A recorded transfer on these ranks, with tensors of its sizes from the bench: each call of the result
/// starts it. Messages go `distance` ranks ahead and come from as far behind. Every rank makes the same
/// calls.
std::function<Request(Stream&)> prepare(const RecordedTransfer& transfer, Communicator& ranks, int distance,
                                        Workbench& bench);

}  // namespace ottava
