#pragma once

#include <cstdlib>
#include <string_view>

namespace ottava::test {

/// Whether this run may write files of tests/golden anew: only where OTTAVA_WRITE_GOLDEN is set. A hidden tag
/// does not protect them, since a pattern of names starts hidden cases as well.
inline bool writes_golden() { return std::getenv("OTTAVA_WRITE_GOLDEN") != nullptr; }

inline constexpr std::string_view kWritesNoGolden = "OTTAVA_WRITE_GOLDEN is not set";

}  // namespace ottava::test
