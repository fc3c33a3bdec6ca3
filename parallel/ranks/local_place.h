#pragma once

#include <functional>
#include <string>

#include "core/host_name.h"
#include "parallel/ranks/launch.h"

namespace ottava {

/// Returns `launch` with the rank's place on its machine filled in if the launcher did not say it
/// (Launch::LocalPlace). To find it, the ranks meet at the master and count those with the same host name; if
/// no master is given, the place stays as it is. All ranks call this, before they choose devices.
/// Throws CommError, and ConfigError if LOCAL_RANK is not less than the number of ranks on its machine.
Launch with_local_place(Launch launch, double timeout_seconds, const std::string& host = host_name(),
                        const std::function<void()>& while_waiting = {});

}  // namespace ottava
