#include "core/io/last_lines.h"

#include <algorithm>

namespace ottava {

LastLines::LastLines(const File& file) : file_(file), begin_(file.size()) {
  const size_t feed = find_feed();
  has_more_ = feed != std::string::npos;
  rest_.resize(has_more_ ? feed : 0);
}

bool LastLines::next() {
  if (!has_more_) return false;
  end_ = begin_ + std::ssize(rest_) + 1;
  const size_t feed = find_feed();
  has_more_ = feed != std::string::npos;
  line_ = rest_.substr(has_more_ ? feed + 1 : 0);
  rest_.resize(has_more_ ? feed : 0);
  return true;
}

// The last one in what is left of the file, of which it reads until there is one.
size_t LastLines::find_feed() {
  constexpr int64_t kBlock = int64_t{1} << 16;
  size_t feed = rest_.rfind('\n');
  while (feed == std::string::npos && begin_ > 0) {
    // As long as what is there, so that a long line is not copied for every block.
    const int64_t bytes = std::min(std::max<int64_t>(kBlock, std::ssize(rest_)), begin_);
    std::string block(bytes, '\0');
    begin_ -= bytes;
    file_.read_at(block.data(), block.size(), begin_);
    feed = block.rfind('\n');
    rest_.insert(0, block);
  }
  return feed;
}

}  // namespace ottava
