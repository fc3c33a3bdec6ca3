#include "parallel/launcher/line_labels.h"

#include <cerrno>
#include <string_view>
#include <utility>

namespace ottava {
namespace {

constexpr size_t kLongestLine = 64 << 10;

// Writes to a file. What a full disk does not take is lost. Returns why, or 0.
int write_copy(int descriptor, std::string_view text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) done += written;
  }
  return 0;
}

}  // namespace

bool LineLabels::forward(LineOutlet& outlet) {
  char chunk[4096];
  while (outlet.is_empty()) {
    const ssize_t got = ::read(from_, chunk, sizeof chunk);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) {
      print(Lines::all, outlet);
      from_.close();
      return false;
    }
    const std::string_view bytes(chunk, got);
    if (options_.copy >= 0) {
      if (const int error = write_copy(options_.copy, bytes); copy_error_ == 0) copy_error_ = error;
    }
    pending_ += bytes;
    print(Lines::ended, outlet);
  }
  return true;
}

void LineLabels::print(Lines which, LineOutlet& outlet) {
  std::string lines;
  size_t begin = 0;
  for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines += options_.label + pending_.substr(begin, end + 1 - begin);
  pending_.erase(0, begin);
  if (!pending_.empty() && (which == Lines::all || pending_.size() > kLongestLine)) {
    lines += options_.label + pending_ + "\n";
    pending_.clear();
  }
  if (options_.to >= 0) outlet.put(options_.to, std::move(lines));
}

}  // namespace ottava
