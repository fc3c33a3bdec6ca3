#pragma once

#include "core/stream.h"

namespace ottava {

/// A new stream of this CPU or GPU. Throws as Stream::cuda does.
Stream device_stream(Device device);

}  // namespace ottava
