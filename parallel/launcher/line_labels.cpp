#include "parallel/launcher/line_labels.h"

#include <cerrno>
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
    copy(bytes);
    pending_ += bytes;
    print(Lines::ended, outlet);
  }
  return true;
}

void LineLabels::add(std::string_view lines, For whom, LineOutlet& outlet) {
  if (!ends_line_) copy("\n");
  print(Lines::all, outlet);
  copy(lines);
  if (whom == For::copy) return;
  pending_ = lines;
  print(Lines::all, outlet);
}

void LineLabels::copy(std::string_view bytes) {
  if (options_.copy < 0 || bytes.empty()) return;
  ends_line_ = bytes.ends_with('\n');
  if (const int error = write_copy(options_.copy, bytes); copy_error_ == 0) copy_error_ = error;
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
