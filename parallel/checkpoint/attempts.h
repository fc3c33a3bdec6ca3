#pragma once

#include <chrono>
#include <string_view>
#include <thread>

#include "core/io/system_failure.h"
#include "core/log.h"
#include "parallel/checkpoint/rank_group.h"

namespace ottava::checkpoint {

/// Pause before something is tried again that the system could not do (IoError).
inline constexpr double kPauseSeconds = 10;

/// Does `work` and returns what it returns; after an IoError again, up to three times in all: a file system
/// that is away for a moment, from one of many machines, is no reason to train steps again. Either all ranks
/// call it, with work that throws the same on all of them, or one alone, with RankGroup(). Rank 0, or who is
/// alone, warns before each further attempt; `complaint` says what failed, as the beginning of a sentence.
template <class Work>
auto in_three_attempts(const RankGroup& group, std::string_view complaint, double pause_seconds,
                       const Work& work) {
  for (int left = 2;; --left) {
    try {
      return work();
    } catch (const IoError& error) {
      if (left == 0) throw;
      if (group.rank() == 0)
        log::warning("{}, and is tried again in {:g} s: {}", complaint, pause_seconds, error.what());
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_seconds));
  }
}

}  // namespace ottava::checkpoint
