#pragma once

#include <streambuf>

namespace ottava {

/// Opens /dev/null in place of those of standard input, output and error that are closed. Otherwise files
/// opened later would take their numbers, and printed text would go into them. To be called before any file
/// is opened.
void open_standard_streams();

/// While it lives, std::cout writes through it to stdout, and it keeps the reason if a write fails.
class StandardOutput : private std::streambuf {
 public:
  StandardOutput();
  ~StandardOutput() override;
  StandardOutput(const StandardOutput&) = delete;

  /// Writes out what is still buffered and returns `code`. If not everything printed could be written, says
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
