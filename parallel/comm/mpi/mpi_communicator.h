#pragma once

#include <memory>
#include <string>

#include "parallel/comm/messages/host_communicator.h"

/// MPI as transport: moves CPU tensors, and GPU tensors through pinned host memory, so that several ranks may
/// share a GPU.
///
/// MPI_Init asks for MPI_THREAD_SERIALIZED: it is called by the thread that makes the world, every later MPI
/// call comes from the rank's communication thread, and MPI_Finalize is called when the last communicator is
/// gone, after that thread has ended. After a failure MPI is not finalized (it would wait for ranks that are
/// gone): the process must exit with an error, which makes mpirun stop the others.
///
/// Only point-to-point messages are used. Reductions exchange blocks pairwise and add them in rank order,
/// because MPI leaves the order of MPI_Reduce to its implementation; the volume is that of the ring formula.
/// Small all_reduces and all_gathers send whole vectors to every rank, in rounds that pass them on; each rank
/// adds them in the same order, so the bits do not depend on the path.
namespace ottava::mpi {

/// Whether libottava_mpi.so (mpi_module.h) is there and can be opened: OTTAVA_MPI_LIBRARY where set, else in
/// lib/ottava/ beside the program or beside its folder.
bool available();

struct WorldOptions {
  double timeout_seconds = 300;
  /// Longer blocks go in pieces: MPI counts are 32-bit, and only whole messages show progress.
  int64_t largest_message_bytes = int64_t{1} << 26;
  int64_t workspace_bytes = kMessageWorkspaceBytes;
};
/// Starts MPI and returns the communicator of all ranks. Only under an MPI launcher (launch.h). Once per
/// process. Throws CommError, also when the library is missing.
std::unique_ptr<Communicator> make_world(const WorldOptions& options);

}  // namespace ottava::mpi
