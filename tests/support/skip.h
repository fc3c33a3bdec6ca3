#pragma once

#include <string_view>

namespace ottava::test {

/// Says that the running test case cannot check anything on this machine, and why; the case then returns: `if
/// (!has_gpu()) return skip(kNoGpu);`. It prints `SKIPPED: case: reason` on stdout and adds the case to the
/// file that OTTAVA_TEST_CASES names; from that scripts/test.sh lists the cases that no test has run.
void skip(std::string_view reason);

inline constexpr std::string_view kNoGpu = "there is no GPU";

}  // namespace ottava::test
