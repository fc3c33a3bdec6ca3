#pragma once

#include <istream>
#include <optional>
#include <string>
#include <string_view>

namespace ottava {

/// The standard input, or null where it is a terminal: then nothing is piped in.
std::istream* piped_input();

/// What a command works on: `text` where it was given, else the contents of `file` unless that is empty, else
/// all that `input` has. Throws ConfigError in the name of `where` for text and file at once, and where there
/// is none of the three; FileError for a file that cannot be read.
std::string given_text(std::string_view where, const std::optional<std::string>& text,
                       const std::string& file, std::istream* input);

}  // namespace ottava
