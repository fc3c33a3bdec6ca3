#pragma once

#include <string_view>

namespace ottava {

/// Tells the launcher (OTTAVA_ACCOUNTS) why this rank ends: with `text`, or as the whole `line` that would be
/// printed. It prints the line, unless another rank has said the same text, and adds it to the rank's file of
/// --tee. False if no launcher listens: then the line is to be printed.
bool tell_launcher(std::string_view text, std::string_view line);

}  // namespace ottava
