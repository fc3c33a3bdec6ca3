#include "parallel/launcher/line_labels.h"

#include <cerrno>

namespace ottava {
namespace {
constexpr size_t kLongestLine = 64 << 10;
}

void write_whole(int descriptor, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) return;
    if (written > 0) done += written;
  }
}

void LineLabels::forward() {
  char chunk[4096];
  ssize_t got;
  while ((got = ::read(from_, chunk, sizeof chunk)) > 0) {
    const std::string bytes(chunk, got);
    if (options_.copy >= 0) write_whole(options_.copy, bytes);
    pending_ += bytes;
    print(Lines::ended);
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  print(Lines::all);
  from_.close();
}

void LineLabels::print(Lines which) {
  std::string lines;
  size_t begin = 0;
  for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines += options_.label + pending_.substr(begin, end + 1 - begin);
  pending_.erase(0, begin);
  if (!pending_.empty() && (which == Lines::all || pending_.size() > kLongestLine)) {
    lines += options_.label + pending_ + "\n";
    pending_.clear();
  }
  if (options_.to >= 0) write_whole(options_.to, lines);
}

}  // namespace ottava
