#include "core/device.h"

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/text/counted.h"
#include "core/text/lower_case.h"
#include "core/text/number.h"

namespace ottava {

std::string to_string(Device device) {
  switch (device.type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::meta:
      return "meta";
    default:
      return fmt::format("cuda:{}", device.index);
  }
}

int cuda_device_count() { return cuda::device_count(); }
std::string cuda_unavailable_reason() { return cuda::unavailable_reason(); }

Device parse_device(std::string_view text) {
  if (text == "cpu") return {DeviceType::cpu, 0};
  if (text == "auto") return cuda_device_count() > 0 ? Device{DeviceType::cuda, 0} : Device{};
  int index = 0;
  bool is_cuda = text == "cuda";
  if (text.starts_with("cuda:")) {
    index = parse_number<int>(text.substr(5)).value_or(-1);
    is_cuda = index >= 0;
  }
  if (!is_cuda) {
    fail<ConfigError>("device", "'{}' is not a device: expected auto, cpu, cuda or cuda:N{}", text,
                      in_lower_case(text).starts_with("gpu") ? "; did you mean cuda?" : "");
  }
  int count = cuda_device_count();
  if (count == 0)
    fail<DeviceError>("device", "'{}' cannot be used: {}; use cpu or auto", text, cuda_unavailable_reason());
  if (index >= count)
    fail<DeviceError>("device", "'{}' does not exist: this machine has {}, cuda:0 to cuda:{}", text,
                      counted(count, "GPU"), count - 1);
  return {DeviceType::cuda, index};
}

}  // namespace ottava
