#pragma once

#include <streambuf>

namespace ottava {

/// Opens /dev/null in the place of standard input, output and error that are closed: files that are opened
/// later would take their numbers, and what is printed would go into those. Call it before any file is opened.
void open_standard_streams();

/// What std::cout writes through while it lives, into stdout: it keeps why a write failed.
class StandardOutput : private std::streambuf {
 public:
  StandardOutput();
  ~StandardOutput() override;
  StandardOutput(const StandardOutput&) = delete;

  /// Writes out what is still buffered. Returns `code`; where not all that was printed could be written, says
  /// why on standard error and returns 1 in place of 0.
  int written(int code);

 private:
  int overflow(int character) override;
  int sync() override;
  bool keep_error(bool is_good);

  std::streambuf* previous_;
  int error_ = 0;
};

}  // namespace ottava
