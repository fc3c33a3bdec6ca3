#pragma once

#include <memory>

#include "parallel/comm/communicator.h"

namespace ottava::test {

/// `inner` with every call waited for as soon as it is issued, by it and by all that are split off it: what a
/// step would take if nothing of it overlapped. The results and the messages are `inner`'s; each call is
/// counted twice, here and there.
std::unique_ptr<Communicator> make_waited(std::unique_ptr<Communicator> inner);

}  // namespace ottava::test
