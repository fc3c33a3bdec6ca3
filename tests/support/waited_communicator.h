#pragma once

#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"

namespace ottava::test {

/// `inner` with every call waited for as soon as it is issued, by it and by all that are split off it: what a
/// step would take if nothing of it overlapped. Adds the seconds that each call took to `seconds`, which
/// outlives them. The results and the messages are `inner`'s; each call is counted twice, here and there.
std::unique_ptr<Communicator> make_waited(std::unique_ptr<Communicator> inner, std::vector<double>& seconds);

}  // namespace ottava::test
