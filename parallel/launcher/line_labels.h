#pragma once

#include <string>

#include "core/io/descriptor.h"
#include "parallel/launcher/line_outlet.h"

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
  /// Passes on what has come, until the outlet has to wait: then there may be more, and it returns true. The
  /// last line is one without its newline too. Lines of more than 64 KiB are cut.
  bool forward(LineOutlet& outlet);

 private:
  enum class Lines { ended, all };
  void print(Lines which, LineOutlet& outlet);

  Descriptor from_;
  Options options_;
  std::string pending_;
};

}  // namespace ottava
