#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/io/file.h"

namespace ottava {

/// The lines of a file that end in a line feed, from the last to the first. Reads no more of the file than
/// the lines that are asked for, in blocks.
class LastLines {
 public:
  /// `file` must outlive this.
  explicit LastLines(const File& file);
  /// Goes to the preceding line, at first to the last one; false if there is none.
  bool next();
  /// The line, without its line feed; valid until the next call.
  std::string_view text() const { return line_; }
  /// Bytes of the file up to the line's end, its line feed included.
  int64_t end() const { return end_; }

 private:
  size_t find_feed();
  const File& file_;
  int64_t begin_;     // of rest_
  std::string rest_;  // what was read of the lines before this one
  bool has_more_;
  std::string line_;
  int64_t end_ = 0;
};

}  // namespace ottava
