#include "parallel/mpi/mpi_communicator.h"

#include <mpi.h>

#include <numeric>

#include "parallel/mpi/mpi_transport.h"

namespace ottava::mpi {
namespace {

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) fail<CommError>("mpi", "{} failed with code {}", call, code);
}

}  // namespace

bool available() { return true; }

std::unique_ptr<Communicator> make_world(const WorldOptions& options) {
  int started = 0;
  MPI_Initialized(&started);
  if (started) fail<CommError>("mpi", "MPI was started before in this process, and it cannot be started twice");
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) {
    fail<CommError>("mpi", "this MPI library allows calls from its first thread only (level {}): it was built without "
                    "thread support; use one that has MPI_THREAD_SERIALIZED", provided);
  }
  int rank = 0, size = 1;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  auto state = std::make_shared<RankState>(rank, size);
  state->set_timeout_seconds(options.timeout_seconds);
  auto session = std::make_shared<Session>(state);
  session->largest_message_bytes = options.largest_message_bytes;
  session->workspace_bytes = options.workspace_bytes;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &session->comm), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(session->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int* largest_tag = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(session->comm, MPI_TAG_UB, &largest_tag, &found), "MPI_Comm_get_attr");
  if (found) session->largest_tag = *largest_tag;
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto transport = std::make_shared<MpiTransport>(session, state, MpiTransport::Group{"world", std::move(ranks), rank, 0});
  return make_host_world(std::move(transport), std::move(state));
}

}  // namespace ottava::mpi
