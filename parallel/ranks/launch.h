#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ottava {

/// What started the ranks.
enum class Launcher {
  none,         ///< one process
  mpi,          ///< mpirun: MPI_Init finds the others
  slurm,        ///< srun: MPI finds the others, unless MASTER_ADDR is set
  environment,  ///< torchrun and the like: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
};

/// Where rank 0 waits for the others if there is no MPI: MASTER_ADDR and MASTER_PORT, as set by torchrun or
/// by a batch script.
struct Master {
  std::string address;  ///< without the brackets that one of IPv6 may have been given in; empty: not given
  int port = 29500;
  /// How the starter of the ranks has them meet at another port: for messages, after a colon.
  std::string other_port = "set another MASTER_PORT";
};

/// How this process was started, from environment variables only.
struct Launch {
  Launcher launcher = Launcher::none;
  int rank = 0, world_size = 1;
  int local_rank = 0, local_size = 1;  ///< among the ranks of this machine
  std::string source;                  ///< "mpirun (OMPI_COMM_WORLD_SIZE)", for messages
  Master master;
  /// Which of local_rank and local_size the launcher said. The others are those of a single machine with all
  /// ranks until with_local_place() counts them (local_place.h).
  enum class LocalPlace : uint8_t { known, size_unknown, unknown } local_place = LocalPlace::known;
};

/// The variable in which the program keeps what OMP_PROC_BIND, OMP_PLACES and GOMP_CPU_AFFINITY said before
/// it put them aside (apps/openmp_start.h).
inline constexpr const char* kOmpBinding = "OTTAVA_OMP_BINDING";

using Environment = std::function<const char*(const char* name)>;
/// std::getenv.
Environment process_environment();

/// Looks for variables in this order: torchrun's, if complete (with LOCAL_RANK and MASTER_PORT); OpenMPI's;
/// PMI's (MPICH, Intel MPI); those of Slurm's srun; RANK and WORLD_SIZE alone. The order puts the innermost
/// launcher first, since srun starts torchrun's agents and mpirun's daemons, whose ranks inherit its
/// variables. Throws ConfigError if a variable is not a number or missing beside the others, if ranks do not
/// fit sizes, or if two launchers of which neither started the other disagree.
Launch detect_launch(const Environment& environment = process_environment());

/// The GPU of this rank: its local rank, or 0 if the launcher shows each rank one GPU of its own. `visible`
/// is the number of GPUs. If there are fewer than ranks, local ranks wrap around where sharing is allowed;
/// otherwise throws ConfigError.
enum class GpuSharing { forbidden, allowed };
int choose_gpu(const Launch& launch, int visible, GpuSharing sharing);
/// For an error of NCCL's, after a semicolon: what to do if this rank sees fewer GPUs than its machine has
/// ranks, as where Slurm hides those of the others; NCCL may then not reach them (NVIDIA/nccl#1066, #1948).
/// Empty if it sees as many.
std::string advice_of_hidden_gpus(const Launch& launch, int visible);
/// "host/GPU", taking CUDA_VISIBLE_DEVICES into account: for people. Where a launcher shows each rank one GPU
/// of its own, all of them may be "host/0".
std::string gpu_title(int index, const Environment& environment = process_environment());
/// Throws ConfigError, the same on all ranks, if two ranks have the same UUID: NCCL cannot share a GPU. Both
/// lists are by rank.
void require_own_gpus(const std::vector<std::string>& uuids, const std::vector<std::string>& titles);

/// True if this rank's log lines are shown: it is listed in LOG_RANK ("0,3") or, without that variable, is
/// rank 0. Throws ConfigError.
bool shows_log(int rank, const Environment& environment = process_environment());

}  // namespace ottava
