#pragma once

#include <string>

#include "core/error.h"

namespace ottava::test {

/// What the Error says that `f` throws; "no error" when it throws none.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace ottava::test
