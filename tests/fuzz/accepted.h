#pragma once

namespace ottava::test {

/// Set by a target whose parser accepts the input. The driver expects it of every seed of the corpus whose
/// name does not begin with `refused_`: a seed that is no longer accepted reaches little code.
inline bool is_accepted = false;

}  // namespace ottava::test
