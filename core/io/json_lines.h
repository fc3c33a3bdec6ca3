#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"

namespace ottava {

/// A file of one JSON object per line, each with its step, which may have several:
/// `{"step":10,"time":1790000000.25,"loss":4.125}`.
/// Numbers read back the same; one that is not finite is null, and the line says which in "non_finite":
/// {"grad_norm": "nan"}. Each line is handed to the system in one write, so that a killed run leaves whole
/// lines and at most one torn at the end.
class JsonLines {
 public:
  /// What becomes of lines past the step at which a run resumes. kept_apart: the file as it was is copied to
  /// `path.abandoned` (`.abandoned-2` if that is taken), for a run that goes back behind its checkpoints.
  enum class Cut : uint8_t { dropped, kept_apart };
  /// Continues the file of a run that resumes after step `resumed_at`: cuts off the lines past that step, and
  /// what is torn at its end, since the run will write these again. Of the lines that stay it reads the last.
  /// A run that starts anew (0) moves an existing file to `path.previous` (`.previous-2` if that is taken).
  JsonLines(const std::string& path, int64_t resumed_at, Cut cut = Cut::dropped);
  void append(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  /// Appends a line with a value that is not a number.
  void append(int64_t step, const std::string& name, Json value);

 private:
  void write(const Json& line);
  File file_;
  int64_t end_ = 0;
};

}  // namespace ottava
