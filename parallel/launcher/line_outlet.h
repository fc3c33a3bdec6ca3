#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <set>
#include <string>

namespace ottava {

/// Where lines of all ranks leave, one after the other, whole. Never waits for who reads them, whether the
/// other end blocks or not.
class LineOutlet {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes the text, and writes what the other end takes of it at once.
  void put(int to, std::string text);
  /// Whether all that was put is written. Until it is, what is put besides is kept in memory.
  bool is_empty() const { return pieces_.empty(); }
  /// What to wait for before the next write_some(), where it is not empty.
  pollfd watched() const { return {pieces_.front().to, POLLOUT, 0}; }
  /// As much as is taken without waiting; what cannot be written, because the other end is gone, is dropped.
  void write_some();
  /// Since when it waits for the other end.
  Clock::time_point waits_since() const { return waits_since_; }
  /// Nothing more goes to where the next text should.
  void give_up();

 private:
  struct Piece {
    int to = 1;
    std::string text;
  };
  std::deque<Piece> pieces_;
  std::set<int> given_up_;
  Clock::time_point waits_since_;
};

}  // namespace ottava
