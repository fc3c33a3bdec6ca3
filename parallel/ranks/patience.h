#pragma once

#include <algorithm>

#include "parallel/comm/communicator.h"

namespace ottava {

/// The limit of a collective call is for ranks that compute alike. Where one may write, count or read for
/// minutes what the others have no part in, they wait for it with this; one that dies meanwhile is known at
/// once all the same.
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
