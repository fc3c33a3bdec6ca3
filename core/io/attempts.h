#pragma once

#include <chrono>
#include <set>
#include <string>
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

/// What was waited for in vain, by name, so that one start does not wait for it at each place that asks.
class GivenUp {
 public:
  bool contains(const std::string& name) const { return names_.contains(name); }
  /// in_three_attempts() of work on what has that name; a single attempt if it was given up before. Throws
  /// what the last attempt threw.
  template <class Work>
  auto attempt(const std::string& name, const Attempts& how, const Work& work) {
    if (contains(name)) return work();
    try {
      return in_three_attempts(how, work);
    } catch (const IoError&) {
      names_.insert(name);
      throw;
    }
  }

 private:
  std::set<std::string> names_;
};

}  // namespace ottava
