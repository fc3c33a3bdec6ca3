#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// Kinds of calls; `graph` is the launch of a CUDA graph that contains calls.
enum class Collective : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  send,
  recv,
  barrier,
  graph
};
std::string_view name_of(Collective collective);

/// What one rank asked of its communicators since the last reset.
///
/// `payload_bytes` is the size of the whole vector of a call: the tensor of all_reduce, send and recv; all
/// ranks' blocks together for all_gather, reduce_scatter and all_to_all. `sent_bytes` is what this rank sends
/// by the ring formula for n ranks and a payload of N bytes, where slice r is the block of rank r (for
/// all_reduce elements [count * r / n, count * (r + 1) / n)):
///     reduce_scatter  N - slice_r
///     all_gather      (n - 1) slice_r
///     all_reduce      both, = 2 (n - 1) / n * N
///     all_to_all      N - N / n
///     send            N
///     recv, barrier   0
/// Summed over ranks this is exactly the formula's volume, even where n does not divide the count.
class CommStats {
 public:
  struct Total {
    Collective collective;
    std::string axis, label;
    int64_t calls = 0, payload_bytes = 0, sent_bytes = 0;
  };

  struct Entry {
    Collective collective;
    std::string_view axis, label;
    int64_t payload_bytes = 0, sent_bytes = 0;
  };
  void record(const Entry& entry);
  /// Totals since the last reset, in the order in which each was first recorded.
  std::vector<Total> totals() const;
  /// Sums over labels; an empty axis means all axes.
  Total sum(Collective collective, std::string_view axis = {}) const;
  /// Of everything recorded since the last reset.
  int64_t sent_bytes() const;
  int64_t calls() const;
  /// Forgets all counts; called at the start of each step.
  void reset();

 private:
  std::vector<Total> totals_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace ottava
