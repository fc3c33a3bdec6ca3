#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "nccl.h"

// Communicators of the NCCL stand-in, and what their ranks share.
namespace ottava::cuda_host {

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
  std::map<uint64_t, OperationPtr> collectives;  ///< by number; dropped when all have arrived
  std::map<std::pair<int, int>, std::deque<OperationPtr>> sends,
      recvs;  ///< by (from, to); one end has arrived
  /// Ranks connect in their first calls, which are in progress until the others have made theirs. These are
  /// the calls issued, whether or not their streams have come to them.
  std::set<int> collective_ends;
  std::set<std::pair<int, int>> send_ends, recv_ends;  ///< (from, to)
  struct Split {
    std::map<int, std::vector<std::pair<int, ncclComm_t>>> colors;  ///< key, handle
    int asked = 0;
  };
  std::map<uint64_t, Split> splits;
};

}  // namespace ottava::cuda_host

struct ncclComm {
  std::shared_ptr<ottava::cuda_host::Clique> clique;  ///< null until a split is complete
  int rank = 0, gpu = 0, max_ctas = 0;
  bool is_aborted = false, is_destroyed = false;
  bool is_in_progress = true;  ///< nobody has heard yet that its last call has ended
  uint64_t splits = 0;
  int visits = 0;                          ///< groups under way
  int captured = 0;                        ///< groups in graphs
  bool has_collectives = false;            ///< made one
  std::vector<std::pair<int, int>> pairs;  ///< (from, to) that are not known to be connected
  int polls = 1;  ///< how often it still says "in progress": calls of non-blocking communicators end later
  /// What ncclGroupEnd left to be put on streams. As with communicators that do not block, a thread of NCCL's
  /// own does that; here it starts only once somebody asks how far the call is.
  std::vector<std::function<cudaError_t()>> launches;
  bool is_launching = false;
  cudaError_t launched = cudaSuccess;  ///< what became of the last launch
  std::jthread launcher;
  std::thread::id grouping;  ///< the thread whose open group has calls of it: no other may use it
};

namespace ottava::cuda_host {

// With the lock held.
/// Whether the other ends of all that the rank has issued were issued too.
bool is_connected(ncclComm& comm);
void begin_launching(ncclComm_t comm);
void set_last_error(std::string reason);
/// Gives back `result`; the reason is what ncclGetLastError says.
ncclResult_t refuse(ncclResult_t result, std::string reason);
/// Why nothing may be asked about the communicator now, or null.
const char* objection(const ncclComm* comm);
/// Why no call may use it: what objection() says, or that its last call is in progress. NCCL may have ended
/// it meanwhile, or not.
const char* objection_to_use(const ncclComm* comm);
/// All calls of these ranks end in an error from now on.
void blow(Clique& clique, std::string reason);

}  // namespace ottava::cuda_host
