#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace ottava {

/// Calls work(i) for each i < count, on up to `threads` threads, the caller's among them, in any order. What
/// one throws is thrown on when all have ended; what has not begun by then is left out. Where no more threads
/// can be had, those that run do all of it.
template <class Work>
void each_on_threads(size_t threads, size_t count, const Work& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  auto run = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (size_t i = 1; i < std::min(threads, count); ++i) others.emplace_back(run);
    } catch (const std::system_error&) {
    }
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace ottava
