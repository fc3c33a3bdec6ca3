#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>
#include <vector>

#include "parallel/rank_state.h"

namespace ottava::mpi {

/// MPI from start to end; one per process.
class Session {
 public:
  explicit Session(std::shared_ptr<RankState> state) : state_(std::move(state)) {}
  /// Finalizes, unless the rank failed.
  ~Session();
  Session(const Session&) = delete;

  MPI_Comm comm = MPI_COMM_NULL;
  int largest_tag = 32767;
  int64_t largest_message_bytes = int64_t{1} << 30;
  int64_t workspace_bytes = 4 << 20;

 private:
  std::shared_ptr<RankState> state_;
};

/// Messages under way. Not thread-safe: the communication thread's.
class Exchange {
 public:
  Exchange(std::shared_ptr<Session> session, std::shared_ptr<RankState> state)
      : session_(std::move(session)), state_(std::move(state)) {}
  /// Gives up what is under way after a failure.
  ~Exchange();
  Exchange(const Exchange&) = delete;

  /// `peer` is a world rank. Nothing is sent for 0 bytes.
  void send(const void* data, int64_t bytes, int peer, int tag);
  void receive(void* data, int64_t bytes, int peer, int tag);
  /// An empty message.
  void signal(int peer, int tag);
  void await_signal(int peer, int tag);
  /// Ends when all of it has arrived and left. Throws CommError when nothing moved for the time limit, when the rank
  /// failed meanwhile, or when a message has another length than was expected.
  void finish();
  void abandon() noexcept;

 private:
  struct Expected {
    int64_t bytes = -1;  ///< of a receive
    int peer = 0;
  };
  void add(MPI_Request request, Expected expected);
  void check(int code, const char* call) const;

  std::shared_ptr<Session> session_;
  std::shared_ptr<RankState> state_;
  std::vector<MPI_Request> requests_;
  std::vector<Expected> expected_;
  std::vector<int> finished_;
  std::vector<MPI_Status> statuses_;
  int64_t pending_bytes_ = 0;
};

}  // namespace ottava::mpi
