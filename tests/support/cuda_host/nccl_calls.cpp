#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "graphs.h"
#include "memory.h"
#include "nccl_communicator.h"
#include "sanitizer.h"
#include "settings.h"

// Calls and groups of the NCCL stand-in. A group of calls is two tasks on each of its streams: the rank
// arrives, and the group ends once all ranks that take part have arrived; the first whose turn it is moves
// the data for all.
namespace ottava::cuda_host {
namespace {

struct GroupedCall {
  ncclComm_t comm;
  Stream* stream;
  NcclCall call;
};
thread_local int group_depth = 0;
thread_local std::vector<GroupedCall> grouped;
thread_local ncclResult_t group_result = ncclSuccess;  // of the first call that was refused
std::set<int> stream_priorities;
struct Visit;
struct Turn {
  const Visit* visit;
  Stream* stream;
};
std::map<int, std::deque<Turn>> turns;  // by GPU, in the order of the host; of Collectives::in_order

bool is_pair(const NcclCall& call) { return call.kind == NcclKind::send || call.kind == NcclKind::recv; }

OperationPtr join_point_to_point(Clique& clique, int rank, const NcclCall& call) {
  const bool sends = call.kind == NcclKind::send;
  const std::pair<int, int> pair = sends ? std::pair(rank, call.peer) : std::pair(call.peer, rank);
  auto &mine = sends ? clique.sends[pair] : clique.recvs[pair],
       &theirs = sends ? clique.recvs[pair] : clique.sends[pair];
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
      blow(clique, "send and recv differ: " + std::to_string(call.count) + " and " +
                       std::to_string(other.count) + " elements");
    }
    if (other.in_graph != call.in_graph) blow(clique, "one of send and recv is in a graph");
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
    blow(clique, "rank " + std::to_string(rank) + " makes another collective than the others, its number " +
                     std::to_string(number) + (call.in_graph ? ", in a graph" : ", in no graph"));
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
      if (operations[i]->calls.size() == 2 && is_pair(calls[i]))
        return clique->members[static_cast<size_t>(calls[i].peer)].stream;
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
      operations.push_back(is_pair(call) ? join_point_to_point(*clique, comm->rank, call)
                                         : join_collective(*clique, comm->rank, call));
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

bool has_turn(int gpu, const Visit* visit) {
  const std::deque<Turn>& queue = turns[gpu];
  return std::ranges::find(queue, visit, &Turn::visit) == queue.end() || queue.front().visit == visit;
}

/// A graph that contains calls of a communicator keeps it from ending.
struct CapturedCall {
  explicit CapturedCall(ncclComm_t c) : comm(c) { comm->captured++; }
  CapturedCall(const CapturedCall&) = delete;
  ~CapturedCall() {
    comm->captured--;
    wake();
  }
  ncclComm_t comm;
};

void enqueue_visit(Stream& stream, ncclComm_t comm, const std::vector<NcclCall>& calls) {
  auto visit = std::make_shared<Visit>(Visit{comm, comm->clique, calls, {}});
  stream_priorities.insert(stream.priority);
  comm->clique->members[static_cast<size_t>(comm->rank)].stream = &stream;
  comm->visits++;
  const int gpu = comm->gpu;
  if (settings().collectives == Collectives::in_order) turns[gpu].push_back({visit.get(), &stream});
  enqueue(stream, {.run =
                       [visit](Stream& s) {
                         const DeviceAccess access;
                         visit->arrive(s);
                         return cudaSuccess;
                       },
                   .ready = [visit, gpu] { return has_turn(gpu, visit.get()); },
                   .waits_for = [gpu] { return turns[gpu].front().stream; }});
  enqueue(stream, {.run =
                       [visit](Stream& s) {
                         const DeviceAccess access;
                         visit->end(s);
                         visit->comm->visits--;
                         std::erase_if(turns[visit->comm->gpu],
                                       [&](const Turn& turn) { return turn.visit == visit.get(); });
                         return cudaSuccess;
                       },
                   .ready = [visit] { return visit->is_complete(); },
                   .waits_for = [visit] { return visit->waits_for(); },
                   .is_late = settings().collectives == Collectives::late});
}

void note_ends(ncclComm& comm, const NcclCall& call) {
  Clique& clique = *comm.clique;
  if (!is_pair(call)) {
    comm.has_collectives = true;
    clique.collective_ends.insert(comm.rank);
    return;
  }
  const bool sends = call.kind == NcclKind::send;
  const std::pair<int, int> pair = sends ? std::pair(comm.rank, call.peer) : std::pair(call.peer, comm.rank);
  (sends ? clique.send_ends : clique.recv_ends).insert(pair);
  comm.pairs.push_back(pair);
}

// With the lock held: everything that the thread has grouped, by communicator and stream.
ncclResult_t issue_grouped() {
  std::vector<GroupedCall> calls;
  calls.swap(grouped);
  for (const GroupedCall& c : calls) c.comm->grouping = {};
  ncclResult_t result = std::exchange(group_result, ncclSuccess);
  if (result != ncclSuccess) return result;
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
    for (const NcclCall& call : together) note_ends(*comm, call);
    comm->launches.emplace_back([comm, stream, together]() mutable {
      auto captured = stream->capture ? std::make_shared<CapturedCall>(comm) : nullptr;
      for (NcclCall& call : together) call.in_graph = captured != nullptr;
      return submit(*stream, [comm, together, captured](Stream& on) { enqueue_visit(on, comm, together); });
    });
    comm->polls = 1;
    comm->is_in_progress = true;
    result = ncclInProgress;
    calls.swap(rest);
  }
  return result;
}

/// Why the call would be refused, or null.
const char* objection_to(ncclComm_t comm, const Stream* stream, const NcclCall& call) {
  if (const char* reason = objection_to_use(comm)) return reason;
  if (!stream || stream->gpu != comm->gpu) return "the stream is not one of the communicator's GPU";
  return objection(call, comm->rank, static_cast<int>(comm->clique->members.size()), comm->gpu);
}

ncclResult_t make_call(ncclComm_t comm, cudaStream_t handle, const NcclCall& call) {
  auto lock = lock_layer();
  Stream* stream = find_stream(handle);
  ncclResult_t result = ncclSuccess;
  if (const char* reason = objection_to(comm, stream, call))
    result = refuse(ncclInvalidArgument, reason);
  else if (is_pair(call) && call.peer == comm->rank && group_depth == 0)
    result = refuse(ncclInvalidUsage, "a send to oneself outside a group");
  if (result != ncclSuccess) {
    if (group_depth > 0 && group_result == ncclSuccess) group_result = result;
    return result;
  }
  grouped.push_back({comm, stream, call});
  comm->grouping = std::this_thread::get_id();
  return group_depth == 0 ? issue_grouped() : ncclSuccess;
}

}  // namespace

bool is_connected(ncclComm& comm) {
  const Clique& clique = *comm.clique;
  if (comm.has_collectives && clique.collective_ends.size() < clique.members.size()) return false;
  for (const auto& pair : comm.pairs)
    if (!clique.send_ends.contains(pair) || !clique.recv_ends.contains(pair)) return false;
  comm.pairs.clear();
  return true;
}

std::set<int> nccl_stream_priorities() {
  auto lock = lock_layer();
  return std::exchange(stream_priorities, {});
}

void begin_launching(ncclComm_t comm) {
  comm->is_launching = true;
  comm->launcher = std::jthread([comm] {
    auto lock = lock_layer();
    current_gpu() = comm->gpu;
    comm->launched = cudaSuccess;
    for (const auto& launch : std::exchange(comm->launches, {})) {
      if (comm->launched == cudaSuccess) comm->launched = launch();
    }
    if (comm->launched != cudaSuccess) set_last_error(cudaGetErrorString(comm->launched));
    comm->is_launching = false;
  });
}

}  // namespace ottava::cuda_host

using namespace ottava::cuda_host;

extern "C" {

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

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::all_reduce, type, op, count, 0, send, recv});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::reduce_scatter, type, op, count, 0, send, recv});
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::all_gather, type, ncclSum, count, 0, send, recv});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::send, type, ncclSum, count, peer, send, nullptr});
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return make_call(comm, stream, {NcclKind::recv, type, ncclSum, count, peer, nullptr, recv});
}

}  // extern "C"
