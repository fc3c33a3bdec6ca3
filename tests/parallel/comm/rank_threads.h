#pragma once

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace ottava::test {

/// Every rank in a thread of its own, as if it were a process. Returns what each one threw.
inline std::vector<std::string> run_ranks(int n, const std::function<void(int rank)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

}  // namespace ottava::test
