#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/decide/decisions.h"

namespace ottava {

/// What this machine's runs measured, so that the next run need not: a file for each subject,
/// "cuBLASLt 13.1.0 on NVIDIA H200", of entries as decisions have them, which is replaced as a whole, so that
/// processes may share it.
class MeasurementCache {
 public:
  struct Kind {
    std::string_view name;    ///< what its files are called: "gemm"
    std::string_view title;   ///< of what they hold: "matrix products by "
    std::string_view things;  ///< for messages: "Algorithms of matrix products"
    bool (*is_entry)(const Decisions::Entry& entry);
  };
  /// `setting` (training.gemm_cache) is a folder; "auto": $XDG_CACHE_HOME/ottava, else ~/.cache/ottava;
  /// "off": nothing is kept, nor where there is no home.
  MeasurementCache(const Kind& kind, std::string_view setting, std::string_view subject);

  /// Empty where nothing is kept.
  const std::string& file() const { return file_; }
  /// Nothing if there is none, and, said in a warning, if it cannot be read or was made for another subject.
  Decisions read() const;
  /// Puts `entries` in, beside what the file has by now under other names, in one step. A place that cannot
  /// be written is said in a warning: the run goes on.
  void write(const std::vector<Decisions::Entry>& entries) const;

 private:
  Decisions parse() const;
  const Kind& kind_;
  std::string made_for_, file_;
};

}  // namespace ottava
