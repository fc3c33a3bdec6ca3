#include "core/error.h"
#include "parallel/mpi/mpi_communicator.h"

namespace ottava::mpi {

bool available() { return false; }

std::unique_ptr<Communicator> make_world(const WorldOptions&) {
  fail<CommError>("mpi", "this binary was built without MPI: install libopenmpi-dev and openmpi-bin, and build again");
}

}  // namespace ottava::mpi
