// NCCL's functions, found in its library at run time: the program also starts where NCCL is not installed,
// and takes the one that comes with the toolkit, the system or pip (core/cuda/shared_library.h).
#include <fmt/core.h>
#include <nccl.h>

#include "core/cuda/shared_library.h"

namespace {

const ottava::cuda::SharedLibrary& library() {
  static const auto opened = [] {
    ottava::cuda::SharedLibrary found(
        "libnccl.so.2",
        fmt::format("the NVIDIA NCCL library, as in pip's nvidia-nccl-cu{}", CUDART_VERSION / 1000));
    decltype(&ncclCommSplit) newest = nullptr;  // of the functions below: one that has it has them all
    found.find("ncclCommSplit", newest);
    return found;
  }();
  return opened;
}

/// Calls the library's function of this name, which is declared as kDeclared.
template <auto kDeclared, class... Arguments>
auto call(const char* name, Arguments... arguments) {
  static const auto function = [&] {
    decltype(kDeclared) found = nullptr;
    library().find(name, found);
    return found;
  }();
  return function(arguments...);
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return call<ncclGetUniqueId>("ncclGetUniqueId", id); }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return call<ncclCommInitRankConfig>("ncclCommInitRankConfig", comm, size, id, rank, config);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* split, ncclConfig_t* config) {
  return call<ncclCommSplit>("ncclCommSplit", comm, color, key, split, config);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return call<ncclCommFinalize>("ncclCommFinalize", comm); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return call<ncclCommDestroy>("ncclCommDestroy", comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return call<ncclCommAbort>("ncclCommAbort", comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return call<ncclCommGetAsyncError>("ncclCommGetAsyncError", comm, error);
}
const char* ncclGetErrorString(ncclResult_t result) {
  return call<ncclGetErrorString>("ncclGetErrorString", result);
}
const char* ncclGetLastError(ncclComm_t comm) { return call<ncclGetLastError>("ncclGetLastError", comm); }
ncclResult_t ncclGroupStart() { return call<ncclGroupStart>("ncclGroupStart"); }
ncclResult_t ncclGroupEnd() { return call<ncclGroupEnd>("ncclGroupEnd"); }
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return call<ncclAllReduce>("ncclAllReduce", send, recv, count, type, op, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call<ncclReduceScatter>("ncclReduceScatter", send, recv, count, type, op, comm, stream);
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call<ncclAllGather>("ncclAllGather", send, recv, count, type, comm, stream);
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call<ncclSend>("ncclSend", data, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call<ncclRecv>("ncclRecv", data, count, type, peer, comm, stream);
}
