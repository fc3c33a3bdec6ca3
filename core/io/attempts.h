#pragma once

#include <chrono>
#include <string_view>
#include <thread>

#include "core/io/system_failure.h"
#include "core/log.h"

namespace ottava {

/// Pause before something is tried again that the system could not do (IoError).
inline constexpr double kPauseSeconds = 10;

/// How something is tried again.
struct Attempts {
  std::string_view complaint;  ///< what failed, as the beginning of a sentence
  double pause_seconds = kPauseSeconds;
  bool is_told = true;  ///< a warning precedes each further attempt
};

/// Does `work` and returns what it returns; after an IoError again, up to three times in all: a file system
/// that is away for a moment, from one of many machines, is no reason to end a run, or to train steps again.
template <class Work>
auto in_three_attempts(const Attempts& how, const Work& work) {
  for (int left = 2;; --left) {
    try {
      return work();
    } catch (const IoError& error) {
      if (left == 0) throw;
      if (how.is_told)
        log::warning("{}, and is tried again in {:g} s: {}", how.complaint, how.pause_seconds, error.what());
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(how.pause_seconds));
  }
}

}  // namespace ottava
