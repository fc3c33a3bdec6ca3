#include "apps/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace ottava {

void open_standard_streams() {
  int number = 0;
  do {
    number = ::open("/dev/null", O_RDWR);
  } while (number >= 0 && number <= STDERR_FILENO);
  if (number > STDERR_FILENO) ::close(number);
}

StandardOutput::StandardOutput() : previous_(std::cout.rdbuf(this)) {}

StandardOutput::~StandardOutput() { std::cout.rdbuf(previous_); }

int StandardOutput::written(int code) {
  sync();
  if (error_ == 0 && std::ferror(stdout) != 0) error_ = EIO;  // of what the log wrote
  if (error_ == 0) return code;
  std::fprintf(stderr, "ottava: [output] cannot write to standard output: %s\n", std::strerror(error_));
  return code != 0 ? code : 1;
}

int StandardOutput::overflow(int character) {
  if (character == traits_type::eof()) return traits_type::not_eof(character);
  const int put = std::fputc(character, stdout);
  keep_error(put != EOF);
  return put;
}

int StandardOutput::sync() { return keep_error(std::fflush(stdout) == 0) ? 0 : -1; }

// The first: what comes after it fails for the same reason, or is no part of what was meant.
bool StandardOutput::keep_error(bool is_good) {
  if (!is_good && error_ == 0) error_ = errno;
  return is_good;
}

}  // namespace ottava
