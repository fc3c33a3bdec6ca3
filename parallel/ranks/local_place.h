#pragma once

#include <string>

#include "core/host_name.h"
#include "parallel/ranks/launch.h"

namespace ottava {

/// `launch` with the rank's place on its machine where the launcher did not say it (Launch::LocalPlace): the
/// ranks meet at the master, before devices and CPUs are chosen, and count those with the same host name. All
/// ranks call it. Where nothing says who the master is, as it was. Throws CommError, and ConfigError for a
/// LOCAL_RANK that its machine has not.
Launch with_local_place(Launch launch, double timeout_seconds, const std::string& host = host_name());

}  // namespace ottava
