#pragma once

#include <string_view>

namespace ottava {

/// Where a rank would print what it tells its launcher. One character of an account.
enum class Printed : char { to_stdout = 1, to_stderr = 2 };

/// Tells the launcher (OTTAVA_ACCOUNTS) why this rank ends: with `text`, or as the whole `line` that would be
/// printed. It prints the line where the rank would, unless another rank has said the same text, and adds it
/// to the rank's file of --tee. False if no launcher listens: then the line is to be printed.
bool tell_launcher(std::string_view text, std::string_view line, Printed printed);

}  // namespace ottava
