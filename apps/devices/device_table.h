#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// Compute capabilities that can be planned for, times ten.
inline constexpr int kLeastCapability = 80, kMostCapability = 199;

/// What a device does at best and in practice. Keys, units and meaning: configs/devices/README.md.
struct DeviceTable {
  std::string id;    ///< "h100_sxm", or the path of the user's own file
  std::string name;  ///< for people
  std::vector<std::string> driver_names;
  int capability = 0;
  double bf16_tflops = 0, fp8_tflops = 0, fp32_tflops = 0;
  double memory_gib = 0, reserve_gib = 0, memory_gb_per_s = 0, memory_efficiency = 1;
  double sms = 0;
  double gemm_bf16 = 1, gemm_fp8 = 1, gemm_fp32 = 1;
  double attention_forward = 1, attention_backward = 1, cudnn_forward = 0, cudnn_backward = 0;
  double gemm_weights = 0, softmax_forward = 0, softmax_backward = 0;
  double launch_us = 0;
  double link_gb_per_s = 1, link_base_us = 0, link_hop_us = 0, overlap_slowdown = 1;
  double error_percent = 0;
  std::map<std::string, std::string, std::less<>> sources;  ///< of each figure
  bool is_gpu() const { return capability > 0; }
};

/// What is between machines. Keys: configs/networks/README.md.
struct NetworkTable {
  std::string id, name;
  double nic_gb_per_s = 1, efficiency = 1, hop_us = 0, fabric = 1;
  std::map<std::string, std::string, std::less<>> sources;
};

/// A built-in table, or that of a YAML file (a name that ends in .yaml or .yml), which may be based on a
/// built-in one. Throws ConfigError for an unknown name, with the list of names, and for a key that is
/// unknown, missing, or not [number, source]; FileError for a file that cannot be read.
DeviceTable find_device(std::string_view name);
NetworkTable find_network(std::string_view name);

/// The built-in table of the GPU with this name in its driver, if there is one: that which has the longest of
/// the `driver_names` that are in it word by word, so that a GH200 is no H200. A slice of a GPU (MIG) has
/// none: it has a part of the GPU's speed.
std::optional<DeviceTable> device_of_driver(std::string_view driver_name);
/// The same with the name and the memory of this GPU: those of one table may have more or less.
std::optional<DeviceTable> device_of_driver(std::string_view driver_name, size_t memory_bytes);
/// Whether a GPU with this name in its driver is of `table`, which may be the user's own: no built-in table
/// has a longer part of the name. A slice is of a table whose `driver_names` say MIG.
bool is_of(const DeviceTable& table, std::string_view driver_name);

}  // namespace ottava
