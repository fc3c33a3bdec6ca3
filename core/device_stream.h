#pragma once

#include "core/stream.h"

namespace ottava {

/// A new stream on this GPU, or on the CPU for any other device. Throws as Stream::cuda does.
Stream device_stream(Device device);

}  // namespace ottava
