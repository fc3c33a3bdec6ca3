#pragma once

#include "core/error.h"

namespace ottava::test {

/// Set by a target whose parser accepts the input. The driver expects it of every seed of the corpus whose
/// name does not begin with `refused_`: a seed that is no longer accepted reaches little code.
inline bool is_accepted = false;

/// Notes that `parse` accepts the input, unless it throws an Error.
template <class F>
void attempt(F&& parse) {
  try {
    parse();
    is_accepted = true;
  } catch (const Error&) {
  }
}

}  // namespace ottava::test
