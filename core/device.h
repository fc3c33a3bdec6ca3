#pragma once

#include <string>
#include <string_view>

namespace ottava {

/// Where a step runs. `meta` has no data: operations check their arguments, record their cost and return.
enum class DeviceType { cpu, cuda, meta };

/// One device: the CPU, a GPU, or `meta`.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;  ///< which GPU; 0 elsewhere
  bool is_gpu() const { return type == DeviceType::cuda; }
  bool operator==(const Device&) const = default;
};

/// "cpu", "cuda:1", "meta".
std::string to_string(Device device);

/// Reads "auto" (a GPU if one can be used, else the CPU), "cpu", "cuda" or "cuda:1". Throws ConfigError for
/// other text and DeviceError, saying what is missing, for a GPU that cannot be used.
Device parse_device(std::string_view text);

/// GPUs that this process can use; 0 without a CUDA build, driver or device.
int cuda_device_count();
/// Why cuda_device_count() is 0, as a clause for messages ("this binary was built without CUDA", "no NVIDIA
/// driver is loaded", ...).
std::string cuda_unavailable_reason();

}  // namespace ottava
