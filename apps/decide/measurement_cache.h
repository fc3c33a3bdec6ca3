#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/config/decisions.h"

namespace ottava {

/// What runs on this machine have measured, so that the next run need not: one file per subject ("cuBLASLt
/// 13.1.0 on NVIDIA H200") with entries as in Decisions. A file is replaced as a whole, by one process after
/// the other, so that they may share it.
class MeasurementCache {
 public:
  struct Kind {
    std::string_view name;    ///< what its files are called: "gemm"
    std::string_view title;   ///< of what the files hold: "matrix products by "
    std::string_view things;  ///< for messages: "Algorithms of matrix products"
    bool (*is_entry)(const Decisions::Entry& entry);
    /// Whether the file's entry stays where another of its name is to be written; null: never.
    bool (*stays)(const Decisions::Entry& kept, const Decisions::Entry& other) = nullptr;
    /// Of the way in which things are measured; what was measured in another is measured again. 0: it is the
    /// first, of which files say nothing.
    int version = 0;
  };
  /// `setting` (training.gemm_cache) is a folder; "auto": $XDG_CACHE_HOME/ottava, unless that is relative,
  /// else ~/.cache/ottava; "off", or if there is no home: nothing is kept.
  MeasurementCache(const Kind& kind, std::string_view setting, std::string_view subject);

  /// The file's path; empty if nothing is kept.
  const std::string& file() const { return file_; }
  /// The file's entries; none if there is no file, if they are of another version or, with a warning, if it
  /// cannot be read or was made for another subject.
  Decisions read() const;
  /// Adds `entries` in one step, keeping what the file has by now under other names. If it cannot be written,
  /// warns and goes on.
  void write(const std::vector<Decisions::Entry>& entries) const;

 private:
  Decisions parse() const;
  const Kind& kind_;
  std::string subject_;   ///< with the kind's title: what files of every version say
  std::string made_for_;  ///< and this version
  std::string file_;
};

}  // namespace ottava
