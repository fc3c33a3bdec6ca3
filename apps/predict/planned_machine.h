#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/planned_experiment.h"
#include "apps/decide/device_peaks.h"
#include "apps/predict/machine.h"

namespace ottava {

/// What a plan is for, as the user gives it.
struct MachineChoice {
  /// Table or file; empty: with training.device cuda the GPU of the capability, else this machine's with its
  /// own memory, else an H100; with auto this machine's GPU, if it has one; else its CPU.
  std::string device;
  std::string network;                   ///< table or file; empty: ib_400
  std::vector<std::string> calibration;  ///< files of MeasuredOperations
  int ranks_per_node = 0;                ///< 0: 8; on a CPU the number of its cores
  int compute_capability = 0;            ///< 0: the table's
  /// Of memory for each rank; else the table's. Holds for a GPU that no table has, too.
  std::optional<double> limit_gib = {};
};

/// The table for this configuration; nothing for a GPU or a capability that no table has. Throws ConfigError
/// for an unknown name, for a GPU with training.device cpu or the reverse, and for a capability that the
/// named device does not have.
std::optional<DeviceTable> choose_device(const MachineChoice& choice, const Config& config);

/// The file in which runs keep the times of products by this library on this GPU (training.gemm_cache; `gpu`
/// is its name in the driver), if `device` is the GPU's table and the file has any; else empty.
std::string kept_products(const DeviceTable& device, std::string_view gemm_cache, const std::string& library,
                          const std::string& gpu);

/// The devices for the ranks of this experiment. A CPU is measured, or its kept rates are used, unless it is
/// calibrated, with the calling thread's parallel_threads(), which the caller sets to training.threads if
/// that is given. Its ranks share its memory, and its peaks as far as their threads share cores.
Machine planned_machine(const MachineChoice& choice, DeviceTable device, const PlannedExperiment& planned);

/// The machine that runs this process, whose device has these peaks; nothing for a GPU that no table has. A
/// CPU's memory is timed by all ranks at once, so that each gets its share, and its rates are kept: every
/// rank makes the call.
std::optional<Machine> running_machine(Device device, const DevicePeaks& peaks, const Experiment& experiment,
                                       Communicator& control);

/// GiB that a rank may take of this device, and in words what that is.
struct MemoryLimit {
  double gib = 0;
  std::string of;
};
/// Nothing without a machine, of a GPU that no table has, unless the choice says how much.
std::optional<MemoryLimit> memory_limit(const MachineChoice& choice, const Machine* machine);

}  // namespace ottava
