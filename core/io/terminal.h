#pragma once

#include <cstddef>

namespace ottava {

/// How many columns the terminal has to which this descriptor writes; std::string::npos if it is none, or
/// does not say.
size_t terminal_columns(int descriptor);

}  // namespace ottava
