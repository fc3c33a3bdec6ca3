#pragma once

#include "core/threads/parallel_for.h"

namespace ottava {

/// set_parallel_threads() for as long as it lives.
class ThreadsFor {
 public:
  explicit ThreadsFor(int threads) : before_(parallel_threads()) { set_parallel_threads(threads); }
  ~ThreadsFor() { set_parallel_threads(before_); }
  ThreadsFor(const ThreadsFor&) = delete;
  ThreadsFor& operator=(const ThreadsFor&) = delete;

 private:
  int before_;
};

}  // namespace ottava
