#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// Throws ConfigError, with one message on all ranks, if `hash` (of a configuration, a binary, a decision) is
/// not the same everywhere. `what` starts the sentence ("the configuration"). All ranks call it; `ranks`
/// moves CPU tensors.
void require_equal_everywhere(Communicator& ranks, std::string_view what, uint64_t hash);

/// Every rank brings a complaint, or none (empty). Returns that of the first rank that has one, with the
/// rank's number; empty if none has.
std::string first_complaint(Communicator& ranks, std::string_view complaint, std::string_view label);

/// Throws E with the same message on all ranks if any of them brings a complaint (empty: none), so that a
/// rank which cannot go on never leaves the others waiting. The message names the first rank that complains.
/// `label` says what the ranks were waiting for, in case one of them never comes.
template <class E = ConfigError>
void require_no_complaint(Communicator& ranks, std::string_view complaint,
                          std::string_view label = "bootstrap") {
  const std::string first = first_complaint(ranks, complaint, label);
  if (!first.empty()) fail<E>("ranks", "{}", first);
}

/// Runs `work()` on every rank; an Error on one rank becomes the error of all.
void fail_together(Communicator& ranks, const std::function<void()>& work);

/// require_no_complaint(), except that a rank without others throws E in the name of `where`: `[where]
/// complaint`.
template <class E = ConfigError>
void refuse_together(Communicator& ranks, std::string_view where, std::string_view complaint) {
  if (ranks.size() > 1) return require_no_complaint(ranks, complaint);
  if (!complaint.empty()) fail<E>(where, "{}", complaint);
}

/// Replaces `values`, on the CPU, by their sum (or another reduction) over all ranks. Every rank makes the
/// call and waits for it.
void reduce_on_host(Communicator& ranks, const Tensor& values, std::string_view label,
                    ReduceOp op = ReduceOp::sum);

/// To be called before all ranks throw the same error: returns when all of them know it. A rank that threw at
/// once would stop the others before they have heard why. Never throws.
void meet_before_refusing(Communicator& ranks) noexcept;

}  // namespace ottava
