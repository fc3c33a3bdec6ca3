#pragma once

#include <string>

#include "core/io/descriptor.h"

namespace ottava {

/// Passes on what one rank writes, in whole lines, so that lines of ranks do not mix.
class LineLabels {
 public:
  struct Options {
    int to = 1;         ///< where the lines go; -1: nowhere
    std::string label;  ///< stands before each of them
    int copy = -1;      ///< where the bytes go as they came; -1: nowhere
  };
  LineLabels(Descriptor from, Options options) : from_(std::move(from)), options_(std::move(options)) {}

  /// What to wait for, or -1 when the rank's end is closed.
  int descriptor() const { return from_; }
  /// Passes on what has come. The last line is one without its newline too. Lines of more than 64 KiB are
  /// cut.
  void forward();

 private:
  enum class Lines { ended, all };
  void print(Lines which);

  Descriptor from_;
  Options options_;
  std::string pending_;
};

/// Writes all of it, or as much as the other end takes before it is gone.
void write_whole(int descriptor, const std::string& text);

}  // namespace ottava
