#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"
#include "parallel/failure/ledger.h"
#include "parallel/ranks/launch.h"

namespace ottava {

/// This process among the ranks: what `ottava` makes first and gives up last.
struct World {
  Launch launch;
  /// Moves CPU tensors: agreement, decisions, scalars on the host. Solo, MPI or TCP.
  std::unique_ptr<Communicator> control;
  /// Moves tensors of the training device where that is not `control` (NCCL).
  std::unique_ptr<Communicator> device;
  std::unique_ptr<Ledger> ledger;  ///< null for one process

  /// For tensors of the training device.
  Communicator& tensors() const { return device ? *device : *control; }
  /// The same ranks as tensors(), for an owner of its own (RankGroups). All ranks call it.
  std::unique_ptr<Communicator> share_tensors() const;
  /// The same ranks as `control`.
  std::unique_ptr<Communicator> share_control() const;
};

struct WorldRequest {
  double init_timeout_seconds = 300;
  std::string backend = "auto";  ///< comm.backend: "auto", "mpi", "tcp", "nccl"
  int max_ctas = 0;              ///< for NCCL: comm.sm_budget
  Device device;                 ///< the training device of this rank
  double last_seconds = 20;      ///< after a failure, how long this rank may take to end before it is ended
};

/// Connects the ranks, runs `body`, and parts from them: after `body` all ranks meet once more, so that none
/// leaves while others still need it. When `body` throws, the other ranks are told and the exception is
/// thrown again; MPI is then not finalized, and the process must exit with an error. Throws CommError and
/// ConfigError.
void run_rank(const Launch& launch, const WorldRequest& request, const std::function<void(World&)>& body);

/// For main: logs the error that run_rank threw and returns the exit code, 1. OpenMPI stops reading what
/// ranks say when the first of them has died or exited with an error; so ranks wait a moment before they
/// exit, and where OTTAVA_ACCOUNTS names a file (the launcher does, and shows it) each adds its line
/// there.
int report_failure(const Launch& launch, const std::exception& error);

}  // namespace ottava
