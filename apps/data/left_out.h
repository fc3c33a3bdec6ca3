#pragma once

#include <cstdint>
#include <string_view>

#include "core/data/loader.h"

namespace ottava {

/// What is so of completions that begin inside a token, behind "in N completions ".
inline constexpr std::string_view kJoinedCompletions =
    "the first token begins in the prompt, as where that ends with a space; the loss counts the token, but "
    "the prompts that a trained model is given end with another: let the space begin the completion";

/// Tells the log what a loader has left out of its data (bad records, and conversations longer than a
/// window), and of completions that begin inside a token.
class LeftOut {
 public:
  /// Warns, on rank 0 of `ranks`, each of which leaves out what it reads itself, when it is more than twice
  /// as much as before. `of`: of which data, as " of the validation data"; `seq_len`: the key of the window's
  /// length.
  void report(const data::DataStats& stats, std::string_view of, int ranks, std::string_view seq_len);

 private:
  int64_t bad_records_ = 0, too_long_ = 0, joined_ = 0;
};

}  // namespace ottava
