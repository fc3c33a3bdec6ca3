#pragma once

#include <string>
#include <string_view>

#include "core/io/descriptor.h"
#include "parallel/launcher/line_outlet.h"

namespace ottava {

/// Passes on what one rank writes in whole lines, so that lines of different ranks do not mix.
class LineLabels {
 public:
  struct Options {
    int to = 1;         ///< where the lines go; -1: nowhere
    std::string label;  ///< precedes each line
    int copy = -1;      ///< where the bytes go unchanged; -1: nowhere
  };
  LineLabels(Descriptor from, Options options) : from_(std::move(from)), options_(std::move(options)) {}

  /// The descriptor to wait for, or -1 once the rank has closed its end.
  int descriptor() const { return from_; }
  /// Passes on what has arrived until the outlet has to wait; returns true if there may be more. The last
  /// line counts even without its newline. Lines of more than 64 KiB are cut.
  bool forward(LineOutlet& outlet);
  /// Adds whole lines after what has arrived, as if the rank had written them; some are only for the copy.
  enum class For { all, copy };
  void add(std::string_view lines, For whom, LineOutlet& outlet);
  /// The errno of the first copy that lacks something, or 0.
  int copy_error() const { return copy_error_; }

 private:
  enum class Lines { ended, all };
  void copy(std::string_view bytes);
  void print(Lines which, LineOutlet& outlet);

  Descriptor from_;
  Options options_;
  std::string pending_;
  int copy_error_ = 0;
  bool ends_line_ = true;  ///< what was copied
};

}  // namespace ottava
