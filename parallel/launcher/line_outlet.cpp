#include "parallel/launcher/line_outlet.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace ottava {

void LineOutlet::put(int to, std::string text) {
  if (text.empty() || given_up_.contains(to)) return;
  if (pieces_.empty()) waits_since_ = Clock::now();
  pieces_.push_back({to, std::move(text)});
  write_some();
}

// PIPE_BUF bytes: a writable pipe, even a blocking one, takes that many at once.
void LineOutlet::write_some() {
  while (!pieces_.empty()) {
    pollfd other_end = watched();
    if (::poll(&other_end, 1, 0) < 1) return;
    auto& [to, text] = pieces_.front();
    const ssize_t written = ::write(to, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (written < 0 && errno == EAGAIN) return;
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      if (write_error_ == 0 && errno != EPIPE) write_error_ = errno;
      text.clear();
    }
    if (written > 0) text.erase(0, written);
    if (written > 0) waits_since_ = Clock::now();
    if (text.empty()) pieces_.pop_front();
  }
}

void LineOutlet::give_up() {
  const int to = pieces_.front().to;
  given_up_.insert(to);
  std::erase_if(pieces_, [&](const Piece& piece) { return piece.to == to; });
  waits_since_ = Clock::now();
}

}  // namespace ottava
