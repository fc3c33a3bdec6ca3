#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <vector>

#include "parallel/communicator.h"

namespace ottava::conformance {

/// Fails the case from any thread or process (Catch's assertions belong to one thread).
template <class... A>
void expect(bool holds, fmt::format_string<A...> format, A&&... args) {
  if (!holds) throw std::runtime_error(fmt::format(format, std::forward<A>(args)...));
}

/// Calls body and checks that it throws E with a message that contains `text`.
template <class E, class Body>
void expect_error(std::string_view text, Body body) {
  try {
    body();
  } catch (const E& error) {
    expect(std::string_view(error.what()).find(text) != std::string_view::npos, "expected '{}' in: {}", text,
           error.what());
    return;
  }
  expect(false, "nothing was thrown, expected: {}", text);
}

/// One body that every rank of a world runs.
struct Case {
  const char* name;
  void (*run)(Communicator& world);
};
/// Arguments, errors, groups, counters: every implementation, dry_run included.
const std::vector<Case>& contract_cases();
/// Results: every implementation that moves data.
const std::vector<Case>& data_cases();

}  // namespace ottava::conformance
