#pragma once

#include <istream>
#include <optional>
#include <string>
#include <string_view>

namespace ottava {

/// Standard input, or null if it is a terminal, so that nothing is piped in.
std::istream* piped_input();

/// The text that a command works on: `text` if given, else the contents of `file` unless that is empty, else
/// all of `input`. Throws ConfigError in the name of `where` if both text and file are given, or none of the
/// three; FileError for a file that cannot be read.
std::string given_text(std::string_view where, const std::optional<std::string>& text,
                       const std::string& file, std::istream* input);

}  // namespace ottava
