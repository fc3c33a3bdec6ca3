#include "core/device_stream.h"

namespace ottava {

Stream device_stream(Device device) {
  return device.type == DeviceType::cuda ? Stream::cuda(device.index) : Stream::cpu();
}

}  // namespace ottava
