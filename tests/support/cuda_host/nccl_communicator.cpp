#include "nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "memory.h"
#include "settings.h"

// How communicators begin, are divided and end, and what is said of errors.
namespace ottava::cuda_host {
namespace {

std::vector<std::unique_ptr<ncclComm>> communicators;    // kept for ever: work under way may still ask them
std::map<std::string, std::shared_ptr<Clique>> cliques;  // by unique id, until all have joined
uint64_t ids = 0;
std::string broken_connection;
std::deque<std::string> errors{
    ""};  // each kept for ever: one caller reads the last while another adds the next
std::atomic<const char*> last_error = errors.back().c_str();

}  // namespace

void set_last_error(std::string reason) { last_error = errors.emplace_back(std::move(reason)).c_str(); }

ncclResult_t refuse(ncclResult_t result, std::string reason) {
  set_last_error(std::move(reason));
  return result;
}

const char* objection(const ncclComm* comm) {
  if (!comm) return "there is no communicator";
  if (comm->is_aborted) return "the communicator was aborted";
  if (comm->is_destroyed) return "the communicator was destroyed";
  if (comm->grouping != std::thread::id() && comm->grouping != std::this_thread::get_id())
    return "another thread is in the middle of a group of calls";
  return nullptr;
}

const char* objection_to_use(const ncclComm* comm) {
  if (const char* reason = objection(comm)) return reason;
  return comm->is_in_progress ? "the communicator is used before its last call is known to have ended"
                              : nullptr;
}

void blow(Clique& clique, std::string reason) {
  clique.error = ncclInvalidUsage;
  set_last_error(std::move(reason));
  wake();
}

namespace {

void join(ncclComm_t comm, std::shared_ptr<Clique> clique, int rank) {
  Clique& c = *clique;
  comm->clique = std::move(clique);
  comm->rank = rank;
  c.members[static_cast<size_t>(rank)].gpu = comm->gpu;
  for (size_t r = 0; r < c.members.size(); ++r) {
    if (static_cast<int>(r) != rank && c.members[r].gpu == comm->gpu) {
      blow(c, "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " + std::to_string(r) +
                  " both on GPU " + std::to_string(comm->gpu));
    }
  }
  c.joined++;
}

constexpr int kMostCtas = 64;

/// Why NCCL would refuse the configuration, or null.
const char* objection(const ncclConfig_t* config) {
  if (!config || config->blocking != 0)
    return "communicators are made with blocking = 0: a call that hangs can then be ended";
  if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT) {
    if (config->minCTAs < 1 || config->maxCTAs < config->minCTAs || config->maxCTAs > kMostCtas)
      return "minCTAs and maxCTAs are not 1 <= min <= max <= 64";
  }
  return nullptr;
}
int limit_of(const ncclConfig_t& config) {
  return config.maxCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config.maxCTAs;
}

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

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
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
  if (const char* reason = objection_to_use(comm)) return refuse(ncclInvalidArgument, reason);
  if (const char* reason = objection(config)) return refuse(ncclInvalidArgument, reason);
  if (limit_of(*config) != comm->max_ctas)
    return refuse(ncclInvalidArgument, "a part of a communicator takes other CTAs than the whole");
  *out = color == NCCL_SPLIT_NOCOLOR ? nullptr : new_communicator(*config);
  Clique::Split& split = comm->clique->splits[comm->splits++];
  if (*out) split.colors[color].emplace_back(key, *out);
  if (++split.asked == static_cast<int>(comm->clique->members.size())) make_groups(split);
  comm->polls = 1;
  comm->is_in_progress = true;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  auto lock = lock_layer();
  *result = ncclSuccess;
  if (const char* reason = objection(comm)) return refuse(ncclInvalidUsage, reason);
  if (comm->clique && comm->clique->error != ncclSuccess) {
    *result = comm->clique->error;
  } else if (!comm->clique || comm->clique->joined < static_cast<int>(comm->clique->members.size())) {
    *result = ncclInProgress;
  } else if (!is_connected(*comm)) {
    *result = ncclInProgress;
  } else if (comm->polls > 0) {
    comm->polls--;
    *result = ncclInProgress;
  } else if (!comm->launches.empty() || comm->is_launching) {
    if (!comm->is_launching) begin_launching(comm);
    *result = ncclInProgress;
  } else if (comm->launched != cudaSuccess) {
    *result = ncclUnhandledCudaError;
  }
  if (*result != ncclInProgress) comm->is_in_progress = false;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  auto lock = lock_layer();
  if (const char* reason = objection_to_use(comm)) return refuse(ncclInvalidArgument, reason);
  if (comm->captured > 0)
    return refuse(ncclInvalidUsage, "graphs with calls of the communicator are still there");
  Stream* stream = comm->clique->members[static_cast<size_t>(comm->rank)].stream;
  if (run_until(lock, stream, [&] { return comm->visits == 0; }) != cudaSuccess) return ncclInternalError;
  comm->polls = 1;
  comm->is_in_progress = true;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  auto lock = lock_layer();
  if (const char* reason = objection_to_use(comm)) return refuse(ncclInvalidArgument, reason);
  comm->is_destroyed = true;
  return comm->visits == 0 ? ncclSuccess : refuse(ncclInvalidUsage, "destroyed with work under way");
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  auto lock = lock_layer();
  if (const char* reason = objection(comm)) return refuse(ncclInvalidUsage, reason);
  comm->is_aborted = comm->is_destroyed = true;
  comm->launches.clear();
  wake();
  if (run_until(lock, nullptr, [&] { return comm->captured == 0; }) == cudaSuccess) return ncclSuccess;
  std::fprintf(stderr, "cuda_host: an abort waits for graphs with calls of its communicator, which stay\n");
  std::_Exit(70);
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclSystemError:
      return "unhandled system error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
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

void break_network(Breakage breakage) {
  const ncclResult_t error = breakage == Breakage::remote   ? ncclRemoteError
                             : breakage == Breakage::system ? ncclSystemError
                                                            : ncclInternalError;
  auto lock = lock_layer();
  for (auto& comm : communicators) {
    if (!comm->is_destroyed && comm->clique) comm->clique->error = error;
  }
  set_last_error("the network is gone");
  wake();
}

}  // namespace ottava::cuda_host
