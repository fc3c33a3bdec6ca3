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
void require_no_complaint(Communicator& ranks, std::string_view complaint, std::string_view label) {
  const std::string first = first_complaint(ranks, complaint, label);
  if (!first.empty()) fail<E>("ranks", "{}", first);
}

/// require_no_complaint() with `where` as its label, except that a rank without others throws E in the name
/// of `where`: `[where] complaint`.
template <class E = ConfigError>
void refuse_together(Communicator& ranks, std::string_view where, std::string_view complaint) {
  if (ranks.size() > 1) return require_no_complaint<E>(ranks, complaint, where);
  if (!complaint.empty()) fail<E>(where, "{}", complaint);
}

/// Runs `work` and waits until every rank has run it. If any failed, throws the same error on every rank:
/// that of the lowest that failed, `[where] rank 2: [open] no such file`, or what all of them threw alike, as
/// it is. It keeps its kind (core/error.h);
/// errors of std::filesystem are FileErrors, those of other libraries become Error. CommError is passed on at
/// once, since nothing can be agreed on then; a rank without others throws what `work` throws. `where` also
/// says what the ranks wait for.
void fail_together(Communicator& ranks, std::string_view where, const std::function<void()>& work);

/// Replaces `values`, on the CPU, by their sum (or another reduction) over all ranks. Every rank makes the
/// call and waits for it.
void reduce_on_host(Communicator& ranks, const Tensor& values, std::string_view label,
                    ReduceOp op = ReduceOp::sum);

/// To be called before all ranks throw the same error: returns when all of them know it. A rank that threw at
/// once would stop the others before they have heard why. Never throws.
void meet_before_refusing(Communicator& ranks) noexcept;

}  // namespace ottava
