// NCCL's functions, found in its library at run time: the program also starts where NCCL is not installed,
// and takes the one that comes with the toolkit, the system or pip (core/cuda/shared_library.h).
#include <nccl.h>

#include "core/cuda/shared_library.h"

namespace {

const ottava::cuda::SharedLibrary& library() {
  static const ottava::cuda::SharedLibrary opened("libnccl.so.2", "the NVIDIA NCCL library");
  return opened;
}

template <class F>
F find(const char* name) {
  F function = nullptr;
  library().find(name, function);
  return function;
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static const auto call = find<decltype(&::ncclGetUniqueId)>("ncclGetUniqueId");
  return call(id);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  static const auto call = find<decltype(&::ncclCommInitRankConfig)>("ncclCommInitRankConfig");
  return call(comm, size, id, rank, config);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* split, ncclConfig_t* config) {
  static const auto call = find<decltype(&::ncclCommSplit)>("ncclCommSplit");
  return call(comm, color, key, split, config);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  static const auto call = find<decltype(&::ncclCommFinalize)>("ncclCommFinalize");
  return call(comm);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  static const auto call = find<decltype(&::ncclCommDestroy)>("ncclCommDestroy");
  return call(comm);
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  static const auto call = find<decltype(&::ncclCommAbort)>("ncclCommAbort");
  return call(comm);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  static const auto call = find<decltype(&::ncclCommGetAsyncError)>("ncclCommGetAsyncError");
  return call(comm, error);
}
const char* ncclGetErrorString(ncclResult_t result) {
  static const auto call = find<decltype(&::ncclGetErrorString)>("ncclGetErrorString");
  return call(result);
}
const char* ncclGetLastError(ncclComm_t comm) {
  static const auto call = find<decltype(&::ncclGetLastError)>("ncclGetLastError");
  return call(comm);
}
ncclResult_t ncclGroupStart() {
  static const auto call = find<decltype(&::ncclGroupStart)>("ncclGroupStart");
  return call();
}
ncclResult_t ncclGroupEnd() {
  static const auto call = find<decltype(&::ncclGroupEnd)>("ncclGroupEnd");
  return call();
}
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  static const auto call = find<decltype(&::ncclAllReduce)>("ncclAllReduce");
  return call(send, recv, count, type, op, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  static const auto call = find<decltype(&::ncclReduceScatter)>("ncclReduceScatter");
  return call(send, recv, count, type, op, comm, stream);
}
ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  static const auto call = find<decltype(&::ncclReduce)>("ncclReduce");
  return call(send, recv, count, type, op, root, comm, stream);
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  static const auto call = find<decltype(&::ncclAllGather)>("ncclAllGather");
  return call(send, recv, count, type, comm, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  static const auto call = find<decltype(&::ncclBroadcast)>("ncclBroadcast");
  return call(send, recv, count, type, root, comm, stream);
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  static const auto call = find<decltype(&::ncclSend)>("ncclSend");
  return call(data, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  static const auto call = find<decltype(&::ncclRecv)>("ncclRecv");
  return call(data, count, type, peer, comm, stream);
}
