#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "parallel/calls/rank_state.h"

namespace ottava {

/// Ends the process if its rank has failed and is still there so many seconds later, so that a rank that
/// hangs outside of any call does not hold its machine. It shares no thread with what hears of failures,
/// which may hang too: RankState's hooks write files.
class EndWatch {
 public:
  EndWatch(std::shared_ptr<RankState> state, double seconds);
  /// The rank has come to its end.
  ~EndWatch();
  EndWatch(const EndWatch&) = delete;

 private:
  void watch();

  std::shared_ptr<RankState> state_;
  double seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace ottava
