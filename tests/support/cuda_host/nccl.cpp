#include "nccl.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "graphs.h"
#include "memory.h"
#include "sanitizer.h"
#include "settings.h"

// Communicators, groups and streams of the NCCL stand-in. A group of calls is two tasks on each of its streams: the rank
// arrives, and the group ends once all ranks that take part have arrived; the first whose turn it is moves the data for all.
namespace ottava::cuda_host {
namespace {

using OperationPtr = std::shared_ptr<NcclOperation>;

struct Member {
  int gpu = -1;              ///< until it has joined
  Stream* stream = nullptr;  ///< where it last had work
  uint64_t collectives = 0;  ///< it has arrived at
};

/// What the ranks of one communicator share.
struct Clique {
  explicit Clique(int ranks) : members(static_cast<size_t>(ranks)) {}
  std::vector<Member> members;
  int joined = 0;
  ncclResult_t error = ncclSuccess;
  std::map<uint64_t, OperationPtr> collectives;                          ///< by number; dropped when all have arrived
  std::map<std::pair<int, int>, std::deque<OperationPtr>> sends, recvs;  ///< by (from, to); one end has arrived
  struct Split {
    std::map<int, std::vector<std::pair<int, ncclComm_t>>> colors;  ///< key, handle
    int asked = 0;
  };
  std::map<uint64_t, Split> splits;
};

}  // namespace
}  // namespace ottava::cuda_host

struct ncclComm {
  std::shared_ptr<ottava::cuda_host::Clique> clique;  ///< null until a split is complete
  int rank = 0, gpu = 0, max_ctas = 0;
  bool is_aborted = false, is_destroyed = false;
  uint64_t splits = 0;
  int visits = 0;    ///< groups under way
  int captured = 0;  ///< groups in graphs
  int polls = 1;     ///< how often it still says "in progress": calls of non-blocking communicators end later
};

namespace ottava::cuda_host {
namespace {

std::vector<std::unique_ptr<ncclComm>> communicators;  // kept for ever: work under way may still ask them
std::map<std::string, std::shared_ptr<Clique>> cliques;  // by unique id, until all have joined
uint64_t ids = 0;
std::string broken_connection;
std::deque<std::string> errors{""};  // each kept for ever: one caller reads the last while another adds the next
std::atomic<const char*> last_error = errors.back().c_str();

struct GroupedCall {
  ncclComm_t comm;
  Stream* stream;
  NcclCall call;
};
thread_local int group_depth = 0;
thread_local std::vector<GroupedCall> grouped;

void set_last_error(std::string reason) { last_error = errors.emplace_back(std::move(reason)).c_str(); }

ncclResult_t refuse(ncclResult_t result, std::string reason) {
  set_last_error(std::move(reason));
  return result;
}

void blow(Clique& clique, std::string reason) {
  clique.error = ncclInvalidUsage;
  set_last_error(std::move(reason));
  wake();
}

bool is_pair(const NcclCall& call) { return call.kind == NcclKind::send || call.kind == NcclKind::recv; }

OperationPtr join_point_to_point(Clique& clique, int rank, const NcclCall& call) {
  const bool sends = call.kind == NcclKind::send;
  const std::pair<int, int> pair = sends ? std::pair(rank, call.peer) : std::pair(call.peer, rank);
  auto &mine = sends ? clique.sends[pair] : clique.recvs[pair], &theirs = sends ? clique.recvs[pair] : clique.sends[pair];
  OperationPtr operation;
  if (theirs.empty()) {
    operation = std::make_shared<NcclOperation>();
    operation->calls.resize(2);
    mine.push_back(operation);
  } else {
    operation = theirs.front();
    theirs.pop_front();
    const NcclCall& other = operation->calls[sends ? 1 : 0];
    if (other.count != call.count || other.type != call.type) {
      blow(clique, "send and recv differ: " + std::to_string(call.count) + " and " + std::to_string(other.count) + " elements");
    }
  }
  operation->calls[sends ? 0 : 1] = call;
  operation->arrived++;
  return operation;
}

OperationPtr join_collective(Clique& clique, int rank, const NcclCall& call) {
  const uint64_t number = clique.members[static_cast<size_t>(rank)].collectives++;
  OperationPtr& operation = clique.collectives[number];
  if (!operation) {
    operation = std::make_shared<NcclOperation>();
    operation->calls.resize(clique.members.size(), call);
  } else if (!agree(operation->calls[static_cast<size_t>(rank)], call)) {
    blow(clique, "rank " + std::to_string(rank) + " makes another collective than the others, its number " + std::to_string(number));
  }
  operation->calls[static_cast<size_t>(rank)] = call;
  operation->arrived++;
  OperationPtr joined = operation;
  if (joined->arrived == joined->calls.size()) clique.collectives.erase(number);
  return joined;
}

/// One group of one rank on one communicator, on its way through a stream.
struct Visit {
  ncclComm_t comm;
  std::shared_ptr<Clique> clique;
  std::vector<NcclCall> calls;
  std::vector<OperationPtr> operations;

  bool is_complete() const {
    if (comm->is_aborted) return true;
    if (clique->error != ncclSuccess) return false;  // hangs until it is aborted, as the real one does
    for (const OperationPtr& o : operations) {
      if (o->arrived != o->calls.size()) return false;
    }
    return true;
  }
  /// The stream of a rank that keeps this one waiting.
  Stream* waits_for() const {
    const uint64_t mine = clique->members[static_cast<size_t>(comm->rank)].collectives;
    for (size_t i = 0; i < operations.size(); ++i) {
      if (operations[i]->arrived == operations[i]->calls.size()) continue;
      if (operations[i]->calls.size() == 2 && is_pair(calls[i])) return clique->members[static_cast<size_t>(calls[i].peer)].stream;
      for (const Member& m : clique->members) {
        if (m.collectives < mine && m.stream) return m.stream;
      }
    }
    return nullptr;
  }
  void arrive(Stream& stream) {
    if (comm->is_aborted) return;
    const int ranks = static_cast<int>(clique->members.size());
    for (const NcclCall& call : calls) {
      operations.push_back(is_pair(call) ? join_point_to_point(*clique, comm->rank, call) : join_collective(*clique, comm->rank, call));
      as_identity(stream.identity, [&] {
        spoil_result(call, comm->rank, ranks);
        release(operations.back()->order);
      });
    }
  }
  void end(Stream& stream) {
    if (comm->is_aborted) return;
    as_identity(stream.identity, [&] {
      for (const OperationPtr& o : operations) {
        acquire(o->order);
        if (!o->is_done) run_operation(*o);
        o->is_done = true;
        release(o->order);
      }
    });
  }
};

/// A graph that contains calls of a communicator keeps it from ending.
struct CapturedCall {
  explicit CapturedCall(ncclComm_t c) : comm(c) { comm->captured++; }
  CapturedCall(const CapturedCall&) = delete;
  ~CapturedCall() { comm->captured--; }
  ncclComm_t comm;
};

void enqueue_visit(Stream& stream, ncclComm_t comm, const std::vector<NcclCall>& calls) {
  auto visit = std::make_shared<Visit>(Visit{comm, comm->clique, calls, {}});
  comm->clique->members[static_cast<size_t>(comm->rank)].stream = &stream;
  comm->visits++;
  enqueue(stream, {[visit](Stream& s) {
            const DeviceAccess access;
            visit->arrive(s);
            return cudaSuccess;
          }});
  enqueue(stream, {.run = [visit](Stream& s) {
                     const DeviceAccess access;
                     visit->end(s);
                     visit->comm->visits--;
                     return cudaSuccess;
                   },
                   .ready = [visit] { return visit->is_complete(); },
                   .waits_for = [visit] { return visit->waits_for(); },
                   .is_late = settings().collectives == Collectives::late});
}

// With the lock held: everything that the thread has grouped, by communicator and stream.
ncclResult_t issue_grouped() {
  std::vector<GroupedCall> calls;
  calls.swap(grouped);
  ncclResult_t result = ncclSuccess;
  while (!calls.empty()) {
    const ncclComm_t comm = calls[0].comm;
    Stream* stream = calls[0].stream;
    std::vector<NcclCall> together;
    std::vector<GroupedCall> rest;
    for (const GroupedCall& c : calls) {
      if (c.comm == comm && c.stream == stream) {
        together.push_back(c.call);
      } else {
        rest.push_back(c);
      }
    }
    auto captured = stream->capture ? std::make_shared<CapturedCall>(comm) : nullptr;
    const cudaError_t status = submit(*stream, [comm, together, captured](Stream& on) { enqueue_visit(on, comm, together); });
    if (status != cudaSuccess) return refuse(ncclUnhandledCudaError, cudaGetErrorString(status));
    comm->polls = 1;
    result = ncclInProgress;
    calls.swap(rest);
  }
  return result;
}

ncclResult_t make_call(ncclComm_t comm, cudaStream_t handle, const NcclCall& call) {
  auto lock = lock_layer();
  Stream* stream = find_stream(handle);
  if (!comm || !comm->clique || comm->is_aborted) return refuse(ncclInvalidArgument, "the communicator is not ready, or was aborted");
  if (!stream || stream->gpu != comm->gpu) return refuse(ncclInvalidArgument, "the stream is not one of the communicator's GPU");
  if (const char* reason = objection(call, comm->rank, static_cast<int>(comm->clique->members.size()), comm->gpu)) {
    return refuse(ncclInvalidArgument, reason);
  }
  if (is_pair(call) && call.peer == comm->rank && group_depth == 0) return refuse(ncclInvalidUsage, "a send to oneself outside a group");
  grouped.push_back({comm, stream, call});
  return group_depth == 0 ? issue_grouped() : ncclSuccess;
}

void join(ncclComm_t comm, std::shared_ptr<Clique> clique, int rank) {
  Clique& c = *clique;
  comm->clique = std::move(clique);
  comm->rank = rank;
  c.members[static_cast<size_t>(rank)].gpu = comm->gpu;
  for (size_t r = 0; r < c.members.size(); ++r) {
    if (static_cast<int>(r) != rank && c.members[r].gpu == comm->gpu) {
      blow(c, "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " + std::to_string(r) + " both on GPU " + std::to_string(comm->gpu));
    }
  }
  c.joined++;
}

constexpr int kMostCtas = 64;

/// Why NCCL would refuse the configuration, or null.
const char* objection(const ncclConfig_t* config) {
  if (!config || config->blocking != 0) return "communicators are made with blocking = 0: a call that hangs can then be ended";
  if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT) {
    if (config->minCTAs < 1 || config->maxCTAs < config->minCTAs || config->maxCTAs > kMostCtas) return "minCTAs and maxCTAs are not 1 <= min <= max <= 64";
  }
  return nullptr;
}
int limit_of(const ncclConfig_t& config) { return config.maxCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config.maxCTAs; }

ncclComm_t new_communicator(const ncclConfig_t& config) {
  communicators.push_back(std::make_unique<ncclComm>());
  communicators.back()->gpu = current_gpu();
  communicators.back()->max_ctas = limit_of(config);
  return communicators.back().get();
}

// All ranks have asked: the groups come into being.
void make_groups(Clique::Split& split) {
  for (auto& [color, handles] : split.colors) {
    std::sort(handles.begin(), handles.end());
    auto clique = std::make_shared<Clique>(static_cast<int>(handles.size()));
    for (size_t r = 0; r < handles.size(); ++r) join(handles[r].second, clique, static_cast<int>(r));
  }
}

}  // namespace
}  // namespace ottava::cuda_host

using namespace ottava::cuda_host;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  auto lock = lock_layer();
  std::snprintf(id->internal, sizeof id->internal, "clique %llu", static_cast<unsigned long long>(ids++));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  auto lock = lock_layer();
  if (const char* reason = objection(config)) return refuse(ncclInvalidArgument, reason);
  if (rank < 0 || rank >= ranks) return refuse(ncclInvalidArgument, "no such rank");
  auto& clique = cliques[id.internal];
  if (!clique) clique = std::make_shared<Clique>(ranks);
  *comm = new_communicator(*config);
  join(*comm, clique, rank);
  if (!broken_connection.empty()) {
    (*comm)->clique->error = ncclSystemError;
    set_last_error(std::exchange(broken_connection, {}));
  }
  if (clique->joined == ranks) cliques.erase(id.internal);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out, ncclConfig_t* config) {
  auto lock = lock_layer();
  if (const char* reason = objection(config)) return refuse(ncclInvalidArgument, reason);
  if (limit_of(*config) != comm->max_ctas) return refuse(ncclInvalidArgument, "a part of a communicator takes other CTAs than the whole");
  *out = color == NCCL_SPLIT_NOCOLOR ? nullptr : new_communicator(*config);
  Clique::Split& split = comm->clique->splits[comm->splits++];
  if (*out) split.colors[color].emplace_back(key, *out);
  if (++split.asked == static_cast<int>(comm->clique->members.size())) make_groups(split);
  comm->polls = 1;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  auto lock = lock_layer();
  *result = ncclSuccess;
  if (comm->is_destroyed) return refuse(ncclInvalidArgument, "the communicator was destroyed");
  if (comm->clique && comm->clique->error != ncclSuccess) {
    *result = comm->clique->error;
  } else if (!comm->clique || comm->clique->joined < static_cast<int>(comm->clique->members.size())) {
    *result = ncclInProgress;
  } else if (comm->polls > 0) {
    comm->polls--;
    *result = ncclInProgress;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  auto lock = lock_layer();
  if (comm->captured > 0) return refuse(ncclInvalidUsage, "graphs with calls of the communicator are still there");
  Stream* stream = comm->clique->members[static_cast<size_t>(comm->rank)].stream;
  if (run_until(lock, stream, [&] { return comm->visits == 0; }) != cudaSuccess) return ncclInternalError;
  comm->polls = 1;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  auto lock = lock_layer();
  comm->is_destroyed = true;
  return comm->visits == 0 ? ncclSuccess : refuse(ncclInvalidUsage, "destroyed with work under way");
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  auto lock = lock_layer();
  comm->is_aborted = comm->is_destroyed = true;
  wake();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  group_depth++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return refuse(ncclInvalidUsage, "no group is open");
  if (--group_depth > 0) return ncclSuccess;
  auto lock = lock_layer();
  return issue_grouped();
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::all_reduce, type, op, count, 0, send, recv});
}
ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::reduce, type, op, count, root, send, recv});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::reduce_scatter, type, op, count, 0, send, recv});
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::all_gather, type, ncclSum, count, 0, send, recv});
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::broadcast, type, ncclSum, count, root, send, recv});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::send, type, ncclSum, count, peer, send, nullptr});
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::recv, type, ncclSum, count, peer, nullptr, recv});
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclSystemError: return "unhandled system error";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "internal error";
  }
}
const char* ncclGetLastError(ncclComm_t) { return last_error; }

}  // extern "C"

namespace ottava::cuda_host {

std::vector<int> nccl_cta_limits() {
  auto lock = lock_layer();
  std::vector<int> limits;
  for (const auto& comm : communicators) {
    if (!comm->is_destroyed) limits.push_back(comm->max_ctas);
  }
  return limits;
}

void break_next_connection(const char* reason) {
  auto lock = lock_layer();
  broken_connection = reason;
}

void break_network() {
  auto lock = lock_layer();
  for (auto& comm : communicators) {
    if (!comm->is_destroyed && comm->clique) comm->clique->error = ncclRemoteError;
  }
  set_last_error("the network is gone");
  wake();
}

}  // namespace ottava::cuda_host
