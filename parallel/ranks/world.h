#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/comm_config.h"
#include "parallel/comm/communicator.h"
#include "parallel/failure/ledger.h"
#include "parallel/ranks/cpu_share.h"
#include "parallel/ranks/launch.h"

namespace ottava {

/// This process among the ranks: the first thing that `ottava` makes and the last that it gives up.
struct World {
  Launch launch;
  /// Moves CPU tensors, for agreement, decisions and scalars on the host. Solo, MPI or TCP.
  std::unique_ptr<Communicator> control;
  /// Moves tensors of the training device, if `control` does not (NCCL); else null.
  std::unique_ptr<Communicator> device;
  std::unique_ptr<Ledger> ledger;  ///< null for one process
  Device training_device = {};     ///< of this rank

  /// For tensors of the training device.
  Communicator& tensors() const { return device ? *device : *control; }
  /// Another communicator of the same ranks as tensors(), for RankGroups to own. All ranks call it.
  std::unique_ptr<Communicator> share_tensors() const;
  /// Another communicator of the same ranks as `control`. All ranks call it.
  std::unique_ptr<Communicator> share_control() const;
};

struct WorldRequest {
  double init_timeout_seconds = 300;
  CommConfig::Backend backend = CommConfig::Backend::automatic;
  int max_ctas = 0;          ///< for NCCL: comm.sm_budget
  double last_seconds = 20;  ///< after a failure, how long this rank may take to end before it is ended
  /// Called while the ranks look for each other over TCP; may throw to give up (MasterBootstrap).
  std::function<void()> while_meeting = {};
  /// Called once ranks have met, before devices are chosen, with those of this machine: what it throws, all
  /// ranks throw.
  std::function<void(const MachineCpus&)> use_cpus = [](const MachineCpus&) {};
  /// Chooses the training device of this rank, once ranks have met: what it throws, all ranks throw.
  std::function<Device()> find_device = [] { return Device{}; };
};

/// Throws ConfigError for NCCL on a device that is no GPU.
void check_backend(CommConfig::Backend backend, Device device);

/// Connects the ranks, runs `body`, and disconnects. After `body` all ranks meet once more, so that none
/// leaves while others still need it. If `body` throws, the other ranks are told and the exception is thrown
/// again; MPI is then not finalized, and the process must exit with an error, for which it has what is left
/// of `last_seconds`. Throws CommError and ConfigError.
void run_rank(const Launch& launch, const WorldRequest& request, const std::function<void(World&)>& body);

/// For main: logs the error that run_rank() threw and returns the exit code, 1. OpenMPI stops reading the
/// ranks' output once the first of them has died or exited with an error, so ranks wait a moment before they
/// exit. Under `ottava launch` the rank tells it instead (account.h).
int report_failure(const Launch& launch, const std::exception& error);

}  // namespace ottava
