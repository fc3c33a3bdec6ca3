#pragma once

#include <cstdint>
#include <string_view>

#include "core/data/loader.h"

namespace ottava {

/// Tells the log what a loader has left out of its data: bad records, and conversations longer than a window.
class LeftOut {
 public:
  /// Warns, on rank 0 of `ranks`, each of which leaves out what it reads itself, when it is more than twice
  /// as much as before. `of`: of which data, as " of the validation data"; `seq_len`: the key of the window's
  /// length.
  void report(const data::DataStats& stats, std::string_view of, int ranks, std::string_view seq_len);

 private:
  int64_t bad_records_ = 0, too_long_ = 0;
};

}  // namespace ottava
