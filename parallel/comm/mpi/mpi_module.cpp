// libottava_mpi.so: see mpi_module.h. Compiled with any MPI's own compiler driver:
//     mpicxx -std=c++11 -O2 -fPIC -shared -I. parallel/comm/mpi/mpi_module.cpp -o libottava_mpi.so
#define OMPI_SKIP_MPICXX  // the C++ bindings were removed from the standard in 2012; some mpi.h still declare
                          // them
#define MPICH_SKIP_MPICXX
#include "parallel/comm/mpi/mpi_module.h"

#include <mpi.h>

#include <cstring>
#include <vector>

namespace {

MPI_Comm world_comm = MPI_COMM_NULL;

// Requests are pointers in one MPI and numbers in another.
static_assert(sizeof(MPI_Request) <= sizeof(void*), "a request does not fit into a pointer");
void* packed(MPI_Request request) {
  void* bits = nullptr;
  if (request != MPI_REQUEST_NULL) std::memcpy(&bits, &request, sizeof request);
  return bits;
}
MPI_Request unpacked(void* bits) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (bits) std::memcpy(&request, &bits, sizeof request);
  return request;
}

int is_started() {
  int started = 0;
  MPI_Initialized(&started);
  return started;
}

int start(OttavaMpiWorld* world) {
  int provided = 0, code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  world->serialized = provided >= MPI_THREAD_SERIALIZED;
  if (code == MPI_SUCCESS) code = MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(MPI_COMM_WORLD, &world->size);
  if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, &world_comm);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(world_comm, MPI_ERRORS_RETURN);
  int* largest = nullptr;
  int found = 0;
  if (code == MPI_SUCCESS) code = MPI_Comm_get_attr(world_comm, MPI_TAG_UB, &largest, &found);
  world->largest_tag = found ? *largest : 32767;
  return code;
}

int send(const void* data, int bytes, int peer, int tag, void** request) {
  MPI_Request started = MPI_REQUEST_NULL;
  int code = MPI_Isend(data, bytes, MPI_BYTE, peer, tag, world_comm, &started);
  *request = packed(started);
  return code;
}

int receive(void* data, int bytes, int peer, int tag, void** request) {
  MPI_Request started = MPI_REQUEST_NULL;
  int code = MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, world_comm, &started);
  *request = packed(started);
  return code;
}

int test(int count, void** requests, int* ended_count, OttavaMpiEnded* ended) {
  static std::vector<MPI_Request> own;  // calls come from one thread
  static std::vector<MPI_Status> statuses;
  static std::vector<int> finished;
  own.resize(count);
  statuses.resize(own.size());
  finished.resize(own.size());
  for (int i = 0; i < count; ++i) own[i] = unpacked(requests[i]);
  int n = 0, code = MPI_Testsome(count, own.data(), &n, finished.data(), statuses.data());
  if (n == MPI_UNDEFINED) n = 0;
  for (int i = 0; i < n; ++i) {
    const MPI_Status& status = statuses[i];
    OttavaMpiEnded& end = ended[i];
    end.index = finished[i];
    end.error = code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
    int kind = MPI_SUCCESS, bytes = 0;
    if (end.error != MPI_SUCCESS) MPI_Error_class(end.error, &kind);
    end.too_long = kind == MPI_ERR_TRUNCATE;
    if (end.too_long) end.error = MPI_SUCCESS;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    end.bytes = bytes;
    requests[end.index] = nullptr;
  }
  *ended_count = n;
  return code == MPI_ERR_IN_STATUS ? MPI_SUCCESS : code;
}

void abandon_send(void* request) {
  MPI_Request own = unpacked(request);
  MPI_Request_free(&own);
}

void abandon_receive(void* request) {
  MPI_Request own = unpacked(request);
  MPI_Cancel(&own);
  MPI_Request_free(&own);
}

void error_text(int code, char* text) {
  char own[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, own, &length);
  std::strncpy(text, own, 511);
  text[511] = 0;
}

void finish() {
  if (world_comm != MPI_COMM_NULL) MPI_Comm_free(&world_comm);
  MPI_Finalize();
}

}  // namespace

extern "C" const OttavaMpi* ottava_mpi(void) {
  static const OttavaMpi interface = {OTTAVA_MPI_INTERFACE, is_started,      start,      send,  receive, test,
                                      abandon_send,         abandon_receive, error_text, finish};
  return &interface;
}
