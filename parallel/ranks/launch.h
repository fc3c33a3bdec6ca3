#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ottava {

enum class Launcher {
  none,         ///< one process
  mpi,          ///< mpirun: MPI_Init finds the others
  slurm,        ///< srun: MPI where it was started with PMI, else MASTER_ADDR
  environment,  ///< torchrun and friends: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
};

/// Where rank 0 waits for the others when there is no MPI: MASTER_ADDR and MASTER_PORT, as torchrun sets them
/// and as a batch script can.
struct Master {
  std::string address;  ///< empty: not given
  int port = 29500;
};

/// How this process was started, from environment variables only.
struct Launch {
  Launcher launcher = Launcher::none;
  int rank = 0, world_size = 1;
  int local_rank = 0, local_size = 1;  ///< among the ranks of this machine
  std::string source;                  ///< "mpirun (OMPI_COMM_WORLD_SIZE)", for messages
  Master master;
  /// Whether local_rank and local_size are what the launcher says. What is unknown is as if all ranks were on
  /// one machine, until with_local_place() counts (local_place.h).
  enum class LocalPlace : uint8_t { known, size_unknown, unknown } local_place = LocalPlace::known;
};

using Environment = std::function<const char*(const char* name)>;
/// std::getenv.
Environment process_environment();

/// Understands torchrun's variables where they are whole (with LOCAL_RANK and MASTER_PORT), OpenMPI's, PMI's
/// (MPICH, Intel MPI), Slurm's srun's, and RANK and WORLD_SIZE alone, in this order: that of the innermost
/// launcher, since srun starts torchrun's agents and mpirun's daemons, whose ranks inherit its variables.
/// Throws ConfigError when a variable is not a number, is missing beside the others, ranks do not fit sizes,
/// or two launchers of which neither started the other disagree.
Launch detect_launch(const Environment& environment = process_environment());

/// The CPUs a rank computes on.
struct CpuShare {
  std::vector<int> cpus;
  int threads = 1;     ///< for parallel_for: physical cores among `cpus`
  bool binds = false;  ///< whether the process has to be bound to `cpus` (the launcher did not do it)
};
/// A launcher that has bound the rank is believed. Otherwise the CPUs that this process may use are split
/// evenly among the ranks of the machine (contiguous, in core order); with more ranks than CPUs they share
/// and nothing is bound. OMP_NUM_THREADS, where set, decides `threads`. `allowed` are CPU numbers; `core_of`
/// gives the physical core of each.
CpuShare share_cpus(const Launch& launch, const std::vector<int>& allowed,
                    const std::function<int(int)>& core_of,
                    const Environment& environment = process_environment());
/// The same for this machine.
CpuShare cpu_share(const Launch& launch);
/// And binds the process to it, with its threads for parallel_for on the calling thread.
CpuShare apply_cpu_share(const Launch& launch);

/// The GPU of this rank: its local rank, or 0 when the launcher shows each rank one GPU of its own. Where
/// ranks may share GPUs (transport mpi) local ranks wrap around; otherwise too few GPUs throw ConfigError.
/// `visible` counts GPUs.
enum class GpuSharing { forbidden, allowed };
int choose_gpu(const Launch& launch, int visible, GpuSharing sharing);
/// Names a GPU across the machines: "host/GPU", respecting CUDA_VISIBLE_DEVICES.
std::string gpu_identity(int index, const Environment& environment = process_environment());
/// Throws ConfigError, the same on all ranks, when two ranks have the same identity: NCCL cannot share a GPU.
void require_own_gpus(const std::vector<std::string>& identities);

/// True when this rank's log lines are shown: ranks listed in LOG_RANK ("0,3"), rank 0 without it. Throws
/// ConfigError.
bool shows_log(int rank, const Environment& environment = process_environment());

}  // namespace ottava
