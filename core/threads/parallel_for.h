#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include "core/round_up.h"

#if !defined(OTTAVA_SERIAL)
#include <omp.h>
#endif

namespace ottava {

/// Threads that parallel_for uses when called from this thread (OpenMP's per-thread setting: each rank has
/// its own).
inline int parallel_threads() {
#if defined(OTTAVA_SERIAL)
  return 1;
#else
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#endif
}

/// The number of the loop's thread that runs the body, below what parallel_threads() was outside the loop.
/// For scratch memory.
inline int parallel_lane() {
#if defined(OTTAVA_SERIAL)
  return 0;
#else
  return omp_get_thread_num();
#endif
}

/// The most threads that OpenMP gives a loop, by OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS (0: one).
inline int parallel_thread_limit() {
#if defined(OTTAVA_SERIAL)
  return 1;
#else
  return omp_get_max_active_levels() > 0 ? std::max(omp_get_thread_limit(), 1) : 1;
#endif
}

/// Sets parallel_threads() for loops started by the calling thread: 1 to parallel_thread_limit(). Each loop
/// that asks for this many has them from then on, whatever OMP_DYNAMIC says: oneDNN divides a product by the
/// number that it asks for, and leaves out the parts of threads that do not come.
inline void set_parallel_threads(int threads) {
#if !defined(OTTAVA_SERIAL)
  omp_set_dynamic(0);
  omp_set_num_threads(std::clamp(threads, 1, parallel_thread_limit()));
#endif
}

/// What a body throws, kept until all threads of the loop are done: one that left OpenMP's region would end
/// the program.
class FirstException {
 public:
  template <class Part>
  void keep_of(Part&& part) {
    try {
      part();
    } catch (...) {
      if (!has_one_.exchange(true)) first_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::atomic<bool> has_one_ = false;
  std::exception_ptr first_;
};

/// Calls body(begin, end) on disjoint ranges that cover [0, n); the length of each but the last is a multiple
/// of `grain`. Ranges are static: the same thread gets the same range each time. A sum that must not depend
/// on the number of threads makes one partial result per grain and adds those in order. Throws what a body
/// throws, of several threads one's, once the others have ended their ranges; so do the loops below.
template <class Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  int64_t chunks = pieces_of(n, grain);
  if (chunks <= 0) return;
#if !defined(OTTAVA_SERIAL)
  int threads = static_cast<int>(std::min<int64_t>(parallel_threads(), chunks));
  if (threads > 1) {
    FirstException thrown;
#pragma omp parallel num_threads(threads)
    {
      int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
      int64_t first = chunks * t / count * grain, last = std::min(chunks * (t + 1) / count * grain, n);
      if (first < last) thrown.keep_of([&] { body(first, last); });
    }
    thrown.rethrow();
    return;
  }
#endif
  body(int64_t{0}, n);
}

/// parallel_for() that calls body(i) for each index of its range.
template <class Body>
void parallel_for_index(int64_t n, int64_t grain, Body&& body) {
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

/// Like parallel_for over single indices whose costs differ (attention tiles): idle threads take the next
/// index.
template <class Body>
void parallel_for_each(int64_t n, Body&& body) {
#if !defined(OTTAVA_SERIAL)
  int threads = static_cast<int>(std::min<int64_t>(parallel_threads(), n));
  if (threads > 1) {
    FirstException thrown;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < n; ++i) thrown.keep_of([&] { body(i); });
    thrown.rethrow();
    return;
  }
#endif
  for (int64_t i = 0; i < n; ++i) body(i);
}

}  // namespace ottava
