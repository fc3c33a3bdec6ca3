#include "apps/decide/workbench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>

#include "tests/support/catch.h"

// What is compared is measured by turns.

using namespace ottava;

TEST_CASE("numbers that operations are timed with are like those of training: none is zero or subnormal") {
  Workbench bench({DeviceType::cpu, 0});
  const Tensor f32 = bench.tensor(DType::f32, {64, 1024}), bf16s = bench.tensor(DType::bf16, {64, 1024});
  const auto look = [](const auto* numbers, int64_t count) {
    int64_t not_normal = 0, positive = 0;
    float largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto number = static_cast<float>(numbers[i]);
      not_normal += !std::isnormal(number);
      positive += number > 0;
      largest = std::max(largest, std::abs(number));
    }
    CHECK(not_normal == 0);
    CHECK(std::abs(static_cast<double>(positive) / static_cast<double>(count) - 0.5) < 0.05);
    CHECK((largest > 1.9f && largest < 2.1f));
  };
  look(f32.as<float>(), f32.numel());
  look(bf16s.as<bf16>(), bf16s.numel());
}

TEST_CASE("two kinds of work are timed by turns, so that a slow beginning decides nothing") {
  using std::chrono::milliseconds;
  std::string calls;
  Stream stream = Stream::cpu();
  // The first is slow for as long as its measurement alone used to take.
  const auto [first, second] = best_milliseconds_by_turns(
      stream,
      [&] {
        calls += 'a';
        if (calls.size() <= 16) std::this_thread::sleep_for(milliseconds(8));
      },
      [&] {
        calls += 'b';
        std::this_thread::sleep_for(milliseconds(4));
      });
  CHECK(first < second);
  CHECK(calls.substr(0, 6) == "ababab");
  CHECK(calls.size() % 2 == 0);
}
