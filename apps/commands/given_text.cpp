#include "apps/commands/given_text.h"

#include <unistd.h>

#include <iostream>
#include <iterator>

#include "core/error.h"
#include "core/io/file.h"

namespace ottava {

std::istream* piped_input() { return ::isatty(STDIN_FILENO) ? nullptr : &std::cin; }

std::string given_text(std::string_view where, const std::optional<std::string>& text,
                       const std::string& file, std::istream* input) {
  if (text && !file.empty())
    fail<ConfigError>(where, "both a text and the file {} are given: give only one of them", file);
  if (text) return *text;
  if (!file.empty()) return read_file(file, int64_t{4} << 30);
  if (!input)
    fail<ConfigError>(where, "no input is given: write it after the command, give a file, or pipe it in");
  return {std::istreambuf_iterator<char>(*input), {}};
}

}  // namespace ottava
