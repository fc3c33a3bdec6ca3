#pragma once

#include <unistd.h>

#include <utility>

namespace ottava {

/// An open file descriptor, closed by the destructor. Converts to the number that system calls take.
/// Move-only.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  operator int() const { return number_; }  // NOLINT(google-explicit-constructor): what every call takes
  bool is_open() const { return number_ >= 0; }
  void close() {
    if (is_open()) ::close(release());
  }
  /// Gives up the number, which the caller must close.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

}  // namespace ottava
