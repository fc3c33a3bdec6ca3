#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// Refuses, on all ranks with one message, when `hash` is not the same everywhere: a config, a binary, a
/// decision. `what` starts the sentence ("the configuration"). All ranks call it; `ranks` moves CPU tensors.
/// Throws ConfigError.
void require_equal_everywhere(Communicator& ranks, std::string_view what, uint64_t hash);

/// The first rank's complaint of those that all bring, with the rank's number; empty where none has one.
std::string first_complaint(Communicator& ranks, std::string_view complaint, std::string_view label);

/// Throws E with the same message on all ranks when any of them brings a complaint (empty: none): so that a
/// rank which cannot go on never leaves the others waiting. Names the first rank that complains. `label` is
/// what the ranks wait for, where one of them never comes.
template <class E = ConfigError>
void require_no_complaint(Communicator& ranks, std::string_view complaint,
                          std::string_view label = "bootstrap") {
  const std::string first = first_complaint(ranks, complaint, label);
  if (!first.empty()) fail<E>("ranks", "{}", first);
}

/// `work()` on every rank: an Error that it throws on one becomes the complaint of all.
void fail_together(Communicator& ranks, const std::function<void()>& work);

/// require_no_complaint() where one rank without others says it in the name of `where`: throws E, `[where]
/// complaint`.
template <class E = ConfigError>
void refuse_together(Communicator& ranks, std::string_view where, std::string_view complaint) {
  if (ranks.size() > 1) return require_no_complaint(ranks, complaint);
  if (!complaint.empty()) fail<E>(where, "{}", complaint);
}

/// `values`, on the CPU, becomes their sum (or another reduction) over all ranks. Every rank makes the call
/// and waits for it.
void reduce_on_host(Communicator& ranks, const Tensor& values, std::string_view label,
                    ReduceOp op = ReduceOp::sum);

/// For what all ranks are about to throw: returns when all have what they need to say it. A rank that threw
/// at once would stop the others in the middle of hearing why. Never throws.
void meet_before_refusing(Communicator& ranks) noexcept;

}  // namespace ottava
