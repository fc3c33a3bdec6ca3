#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/planned_experiment.h"
#include "apps/decide/device_peaks.h"
#include "apps/predict/machine.h"

namespace ottava {

/// What a plan is for, as a person says it.
struct MachineChoice {
  std::string device;   ///< table or file; empty: the GPU of this machine or of the capability, or this CPU
  std::string network;  ///< table or file; empty: ib_400
  std::vector<std::string> calibration;  ///< files of MeasuredOperations
  int ranks_per_node = 0;                ///< 0: 8, on a CPU as many as it has cores
  int compute_capability = 0;            ///< 0: the table's
  std::optional<double> limit_gib = {};  ///< of memory for each rank; else the table's
};

/// The table for this configuration. Nothing for a GPU or a
/// capability that no table has. Throws ConfigError: an unknown name, a GPU for training.device cpu and the
/// other way round, a capability that the named device does not have.
std::optional<DeviceTable> choose_device(const MachineChoice& choice, const Config& config);

/// The file in which runs keep the times of products by this library on this GPU, as the driver calls it
/// (training.gemm_cache), where `device` is its table and there are any; else empty.
std::string kept_products(const DeviceTable& device, std::string_view gemm_cache, const std::string& library,
                          const std::string& gpu);

/// Devices for the ranks of this experiment. A CPU is measured in half a second, unless calibrated, with the
/// calling thread's parallel_threads(), which are to be training.threads where that is set; its ranks share
/// its memory, and its peaks as far as their threads share cores.
Machine planned_machine(const MachineChoice& choice, DeviceTable device, const PlannedExperiment& planned);

/// The machine that runs this, whose device has these peaks; nothing for a GPU that no table has. The memory
/// of a CPU is timed: every rank makes the call, so that each gets its share.
std::optional<Machine> running_machine(Device device, const DevicePeaks& peaks, const Experiment& experiment);

/// Bytes that a rank may take of this device, and in words what that is.
struct MemoryLimit {
  double gib = 0;
  std::string of;
};
MemoryLimit memory_limit(const MachineChoice& choice, const Machine& machine);

}  // namespace ottava
