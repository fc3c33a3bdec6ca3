#pragma once

#include <algorithm>

#include "parallel/comm/communicator.h"

namespace ottava {

/// Raises the time limit of collective calls for as long as it lives. The usual limit is meant for ranks that
/// do the same work; use this where one rank may write, count or read for minutes while the others wait. A
/// rank that dies meanwhile is still noticed at once.
class Patience {
 public:
  static constexpr double kSeconds = 3600;
  explicit Patience(Communicator& ranks, double seconds = kSeconds)
      : state_(ranks.state()), before_(state_.timeout_seconds()) {
    state_.set_timeout_seconds(std::max(before_, seconds));
  }
  ~Patience() { state_.set_timeout_seconds(before_); }
  Patience(const Patience&) = delete;

 private:
  RankState& state_;
  const double before_;
};

}  // namespace ottava
