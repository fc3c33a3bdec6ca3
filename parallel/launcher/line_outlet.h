#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <set>
#include <string>

namespace ottava {

/// Writes the lines of all ranks, one after the other and whole. Never waits for their reader, whether the
/// descriptor blocks or not.
class LineOutlet {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes the text, and writes at once what the other end accepts.
  void put(int to, std::string text);
  /// Whether everything put so far is written. Until then, further text is kept in memory.
  bool is_empty() const { return pieces_.empty(); }
  /// What to wait for before the next write_some(); only if not empty.
  pollfd watched() const { return {pieces_.front().to, POLLOUT, 0}; }
  /// Writes as much as is accepted without waiting; drops what cannot be written, as because the other
  /// end is gone.
  void write_some();
  /// The errno of the first text that could not be written although somebody reads, as on a full disk, or 0.
  int write_error() const { return write_error_; }
  /// Since when it has been waiting for the other end.
  Clock::time_point waits_since() const { return waits_since_; }
  /// Drops all text, now and later, for the descriptor that the next text is for.
  void give_up();

 private:
  struct Piece {
    int to = 1;
    std::string text;
  };
  std::deque<Piece> pieces_;
  std::set<int> given_up_;
  int write_error_ = 0;
  Clock::time_point waits_since_;
};

}  // namespace ottava
