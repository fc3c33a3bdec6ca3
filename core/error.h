#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace ottava {

/// Base of every error that a user can cause. The message is one sentence: `[where] what is wrong: what we
/// got, what was expected, what to do`. Libraries throw; `main` prints the message and chooses the exit code.
class Error : public std::runtime_error {
 public:
  Error(std::string_view where, std::string_view message)
      : std::runtime_error(fmt::format("[{}] {}", where, message)) {}
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

/// Tensor shapes or dtypes that do not fit an operation.
struct ShapeError : Error {
  using Error::Error;
};
/// A setting that is unknown, of the wrong type, or impossible together with others.
struct ConfigError : Error {
  using Error::Error;
};
/// A file that is missing, unreadable, malformed or cannot be written.
struct FileError : Error {
  using Error::Error;
};
/// Text or tokens that cannot be trained on (empty data, ids outside the vocabulary).
struct DataError : Error {
  using Error::Error;
};
/// A device that is absent, too old, or reports a failure.
struct DeviceError : Error {
  using Error::Error;
};
/// Memory that cannot be had, or is too small: a plan that does not fit, an allocation, a workspace.
struct MemoryError : Error {
  using Error::Error;
};
/// A collective failed, timed out, or a peer is gone.
struct CommError : Error {
  using Error::Error;
};
/// Non-finite values past the budget, or an impossible numeric state.
struct NumericsError : Error {
  using Error::Error;
};

/// Throws an E: `fail<ShapeError>("rms_norm", "x has {} columns, weight has {}", a, b)`.
template <class E = Error, class... A>
[[noreturn]] void fail(std::string_view where, fmt::format_string<A...> format, A&&... args) {
  throw E(where, fmt::format(format, std::forward<A>(args)...));
}

}  // namespace ottava
