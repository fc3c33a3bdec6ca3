#pragma once

#include <unistd.h>

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace ottava {

/// Captures what this process writes to standard output, the log among it, and passes it on when destroyed.
class CapturedOutput {
 public:
  CapturedOutput() : file_(std::tmpfile()), before_((std::fflush(stdout), ::dup(1))) {
    if (file_ == nullptr || before_ < 0 || ::dup2(::fileno(file_), 1) < 0)
      throw std::runtime_error("cannot capture standard output");
  }
  ~CapturedOutput() {
    const std::string all = text();
    ::dup2(before_, 1);
    ::close(before_);
    std::fclose(file_);
    std::fwrite(all.data(), 1, all.size(), stdout);
  }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

  std::string text() const {
    std::fflush(stdout);
    std::string all;
    std::array<char, 4096> block;
    for (ssize_t n;
         (n = ::pread(::fileno(file_), block.data(), block.size(), static_cast<off_t>(all.size()))) > 0;)
      all.append(block.data(), static_cast<size_t>(n));
    return all;
  }

 private:
  std::FILE* file_;
  int before_;
};

}  // namespace ottava
