#pragma once

#include <exception>
#include <string>

namespace ottava {

/// What is said of an exception: its text, but of the standard library's about files one sentence in the form
/// of our own errors.
std::string error_text(const std::exception& error);

}  // namespace ottava
