#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/io/file.h"

namespace ottava {

/// An event file that TensorBoard reads (TFRecord frames of Event protocol buffers,
/// tensorboard/compat/proto). Every event is handed to the system at once, so that TensorBoard shows it while
/// the run goes on.
class TensorBoardWriter {
 public:
  /// Creates `folder` and in it `events.out.tfevents.SECONDS.HOST.PID.0`, whose SECONDS are the time or, if
  /// files there have that or a later one, one more. A run that resumes writes a file of its own;
  /// `resumed_at` > 0 makes TensorBoard forget what earlier files say of later steps. Throws FileError.
  explicit TensorBoardWriter(const std::string& folder, int64_t resumed_at = 0);
  /// Adds a value, of which TensorBoard keeps 32 bits.
  void add_scalar(std::string_view tag, double value, int64_t step);
  /// Adds a text, shown under "Text" as Markdown.
  void add_text(std::string_view tag, std::string_view text, int64_t step);
  /// Flushes to the device.
  void flush() { file_.sync(); }

 private:
  void add_event(const std::string& event);
  File file_;
  int64_t end_ = 0;
};

}  // namespace ottava
