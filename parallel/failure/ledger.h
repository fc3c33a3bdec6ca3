#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "parallel/comm/bootstrap.h"
#include "parallel/comm/tcp.h"

namespace ottava {

class EndWatch;
class LedgerServer;

/// Where each rank is, and which are missing. A rank inside a collective cannot know which other rank it
/// waits for. So every rank reports {step, call number, collective, tensor} over TCP, from a thread of its
/// own, to a server in rank 0. Rank 0 reports to a second server in rank 1, which answers when rank 0 is
/// gone.
///
/// - A rank whose connection breaks without a farewell is gone. All others fail at once, with its last
///   report.
/// - A rank whose call makes no progress asks. The server collects fresh reports and names the ranks that
///   do not answer, are behind, or disagree about the call. All ranks fail with that one message.
/// - A rank that fails for a reason of its own (RankState::fail) says so, and the others fail with its
///   reason.
///
/// "To fail" is RankState::fail: calls under way end with CommError, later ones throw it.
///
/// Reports are sent when something changed, at most every 20 ms (world_size / 4 ms in large worlds), so the
/// last report of a rank that was killed may be that old. Used where ranks are processes.
class Ledger {
 public:
  struct Options {
    double connect_seconds = 60;
    double answer_seconds = 1.5;  ///< how long ranks have to answer when someone asks
    /// After a failure, how long the rank has to end by itself (end_watch.h). 0: for ever (ranks that are
    /// threads).
    double last_seconds = 0;
    /// After how long a wait of ranks for others is told in rank 0's log, and again each time that it has
    /// become twice as long.
    double long_wait_seconds = 60;
  };
  /// All ranks make theirs together. Throws CommError if a server cannot be reached.
  Ledger(std::shared_ptr<RankState> state, Bootstrap& bootstrap, Options options);
  Ledger(std::shared_ptr<RankState> state, Bootstrap& bootstrap)
      : Ledger(std::move(state), bootstrap, Options{}) {}
  /// Says farewell, unless the rank failed.
  ~Ledger();
  /// After a failure: what is done about `last_seconds` outlives this object, up to the end of the process.
  void watch_to_the_end();
  Ledger(const Ledger&) = delete;

 private:
  // Shared with the hooks in RankState, which may outlive this object.
  struct Client;
  std::shared_ptr<Client> client_;
  std::unique_ptr<LedgerServer> server_;
  std::unique_ptr<EndWatch> end_watch_;
  std::thread thread_;
};

}  // namespace ottava
