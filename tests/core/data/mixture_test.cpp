#include "core/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/core/data/fixture.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;

namespace {

constexpr int64_t kPeriod = MixtureTable::kPeriod;

// Repeatable weightings of 2 to 60 sources.
std::vector<double> drawn_weights(uint32_t seed) {
  uint32_t state = seed * 2654435761u + 1;
  auto next = [&] {
    return state = state * 1664525u + 1013904223u, static_cast<double>(state >> 8) / (1 << 24);
  };
  std::vector<double> weights(2 + static_cast<size_t>(next() * 59));
  for (double& w : weights) w = std::exp(5 * next());
  return weights;
}

}  // namespace

TEST_CASE("at any prefix every source is within a sample of its share") {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    INFO("weighting " << seed);
    const std::vector<double> weights = drawn_weights(seed);
    const MixtureTable table(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    CHECK(std::accumulate(table.quotas().begin(), table.quotas().end(), int64_t{0}) == kPeriod);
    std::vector<int64_t> taken(weights.size());
    double worst = 0;
    for (int64_t s = 0; s < kPeriod; ++s) {
      const MixtureTable::Place place = table.at(s);
      REQUIRE(place.index == taken[static_cast<size_t>(place.source)]++);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double exact = static_cast<double>(table.quotas()[i]) * static_cast<double>(s + 1) /
                             static_cast<double>(kPeriod);
        worst = std::max(worst, std::abs(static_cast<double>(taken[i]) - exact));
      }
    }
    CHECK(worst < 1);
    for (size_t i = 0; i < weights.size(); ++i) {
      CHECK(taken[i] == table.quotas()[i]);
      CHECK(std::abs(static_cast<double>(table.quotas()[i]) - weights[i] / sum * kPeriod) <= 1);
    }
  }
}

TEST_CASE("the place of a sample does not depend on how one got there") {
  const MixtureTable table({0.7, 0.2, 0.1, 0});
  CHECK(table.quotas() == std::vector<int64_t>{45875, 13107, 6554, 0});
  std::vector<int64_t> taken(4);
  for (int64_t s = 0; s < 2 * kPeriod + 1000; ++s) {
    if (s % 997 == 0) {
      for (int32_t i = 0; i < 4; ++i) REQUIRE(table.count(i, s) == taken[static_cast<size_t>(i)]);
    }
    const MixtureTable::Place place = table.at(s);
    REQUIRE(place.index == taken[static_cast<size_t>(place.source)]++);
  }
  CHECK(taken[3] == 0);
  // Far out, where counting is out of the question.
  const int64_t far = int64_t{1} << 50;
  CHECK(table.count(0, far) == far / kPeriod * 45875);
  CHECK(table.at(far).index == far / kPeriod * table.quotas()[static_cast<size_t>(table.at(far).source)]);
}

TEST_CASE("the order of a mixture is the same on every machine") {
  const MixtureTable table({3, 2, 1});
  std::string order;
  for (int64_t s = 0; s < 24; ++s) order += static_cast<char>('a' + table.at(s).source);
  CHECK(order == "abacababacababacababacab");
}

TEST_CASE("stages go on where each source was") {
  const Mixture mixture({{0, {1, 1, 0}}, {100, {0, 1, 3}}, {500, {1, 0, 0}}});
  CHECK(mixture.counts(100) == std::vector<int64_t>{50, 50, 0});
  CHECK(mixture.counts(500) == std::vector<int64_t>{50, 150, 300});
  CHECK(mixture.counts(510) == std::vector<int64_t>{60, 150, 300});
  std::vector<int64_t> taken(3);
  for (int64_t s = 0; s < 700; ++s) {
    REQUIRE(mixture.counts(s) == taken);
    const MixtureTable::Place place = mixture.at(s);
    REQUIRE(place.index == taken[static_cast<size_t>(place.source)]++);
  }
  CHECK(mixture.begun(0).empty());
  CHECK(mixture.begun(1).size() == 1);
  CHECK(mixture.begun(100).size() == 1);
  const auto begun = mixture.begun(101);
  REQUIRE(begun.size() == 2);
  CHECK(begun[1].from_sample == 100);
  CHECK(begun[1].quotas == std::vector<int64_t>{0, 16384, 49152});
}

TEST_CASE("weights that mean nothing are refused") {
  const auto message = [](std::vector<double> weights) {
    return message_of<ConfigError>([&] { MixtureTable table(weights); });
  };
  CHECK_HAS(message({1, -0.5}), "the weight of source 1 is -0.5, expected a number >= 0");
  CHECK_HAS(message({1, std::nan("")}), "the weight of source 1 is nan");
  CHECK_HAS(message({0, 0}), "all weights are 0");
  CHECK_HAS(message({1, 1e-6}), "less than 1/65536");
  CHECK_HAS(message({1e308, 1e308}), "add up to more than a float64 holds");
  CHECK_HAS(message_of<ConfigError>([] {
              Mixture m({{0, {1, 1}}, {0, {1, 2}}});
            }),
            "the stage from sample 0 is listed after the one from sample 0");
  CHECK_HAS(message_of<ConfigError>([] { Mixture m({{0, {1, 1}}, {5, {1}}}); }), "has 1 weight, expected 2");
}
