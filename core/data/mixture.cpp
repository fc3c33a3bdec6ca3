#include "core/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <tuple>

#include "core/error.h"
#include "core/text/counted.h"

namespace ottava::data {
namespace {

constexpr std::string_view kWhere = "mixture";
constexpr int64_t kPeriod = MixtureTable::kPeriod;

// Shares of kPeriod by largest remainders, ties by index.
std::vector<int64_t> quotas_of(const std::vector<double>& weights) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0) || !std::isfinite(weights[i]))
      fail<ConfigError>(kWhere, "the weight of source {} is {}, expected a number >= 0", i, weights[i]);
    sum += weights[i];
  }
  if (!std::isfinite(sum))
    fail<ConfigError>(kWhere,
                      "the weights add up to more than a float64 holds: divide all of them by a number");
  if (!(sum > 0)) fail<ConfigError>(kWhere, "all weights are 0: expected at least one above 0");
  std::vector<int64_t> quotas(weights.size());
  std::vector<std::pair<double, size_t>> remainders;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double share = weights[i] / sum * kPeriod;
    if (share > 0 && share < 1) {
      fail<ConfigError>(kWhere,
                        "the weight of source {} is {:.3g} of the total, less than 1/{}: raise it, or set it "
                        "to 0 to leave the source out",
                        i, weights[i] / sum, kPeriod);
    }
    quotas[i] = static_cast<int64_t>(share);
    remainders.emplace_back(quotas[i] - share, i);
  }
  std::ranges::sort(remainders);
  const int64_t left = kPeriod - std::accumulate(quotas.begin(), quotas.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) ++quotas[remainders[i].second];
  return quotas;
}

}  // namespace

MixtureTable::MixtureTable(const std::vector<double>& weights)
    : quotas_(quotas_of(weights)), source_(kPeriod), rank_(kPeriod), slots_(weights.size()) {
  struct Job {
    int64_t time;  // first slot, or the slot before which it must be taken
    int32_t source;
    bool operator>(const Job& other) const {
      return std::tie(time, source) > std::tie(other.time, other.source);
    }
  };
  using Earliest = std::priority_queue<Job, std::vector<Job>, std::greater<>>;
  Earliest waiting, released;
  for (size_t i = 0; i < quotas_.size(); ++i) {
    if (quotas_[i] > 0) waiting.push({0, static_cast<int32_t>(i)});
  }
  for (int64_t slot = 0; slot < kPeriod; ++slot) {
    while (!waiting.empty() && waiting.top().time <= slot) {
      const int32_t source = waiting.top().source;
      const int64_t quota = quotas_[source], job = std::ssize(slots_[source]);
      waiting.pop();
      released.push({((job + 1) * kPeriod + quota - 1) / quota, source});
    }
    const int32_t source = released.top().source;
    released.pop();
    auto& taken = slots_[source];
    source_[slot] = source;
    rank_[slot] = static_cast<int32_t>(taken.size());
    taken.push_back(static_cast<int32_t>(slot));
    const int64_t quota = quotas_[source], job = std::ssize(taken);
    if (job < quota) waiting.push({job * kPeriod / quota, source});
  }
}

MixtureTable::Place MixtureTable::at(int64_t sample) const {
  const size_t slot = sample % kPeriod;
  const int32_t source = source_[slot];
  return {source, sample / kPeriod * quotas_[source] + rank_[slot]};
}

int64_t MixtureTable::count(int32_t source, int64_t samples) const {
  const auto& slots = slots_[source];
  const auto end = std::ranges::lower_bound(slots, static_cast<int32_t>(samples % kPeriod));
  return samples / kPeriod * quotas_[source] + (end - slots.begin());
}

Mixture::Mixture(const std::vector<Stage>& stages) {
  if (stages.empty() || stages[0].from_sample != 0)
    fail<ConfigError>(kWhere, "the first stage must begin at sample 0");
  for (const Stage& stage : stages) {
    if (stage.weights.size() != stages[0].weights.size()) {
      fail<ConfigError>(kWhere, "the stage from sample {} has {}, expected {}, one for each source",
                        stage.from_sample, counted(stage.weights.size(), "weight"), stages[0].weights.size());
    }
    if (!parts_.empty() && stage.from_sample <= parts_.back().from_sample) {
      fail<ConfigError>(kWhere,
                        "the stage from sample {} is listed after the one from sample {}; expected stages in "
                        "increasing order",
                        stage.from_sample, parts_.back().from_sample);
    }
    std::vector<int64_t> before =
        parts_.empty() ? std::vector<int64_t>(stage.weights.size()) : counts(stage.from_sample);
    parts_.push_back({stage.from_sample, MixtureTable(stage.weights), std::move(before)});
  }
}

const Mixture::Part& Mixture::part_of(int64_t sample) const {
  auto after = std::ranges::upper_bound(parts_, sample, {}, &Part::from_sample);
  return *std::prev(after);
}

MixtureTable::Place Mixture::at(int64_t sample) const {
  const Part& part = part_of(sample);
  MixtureTable::Place place = part.table.at(sample - part.from_sample);
  place.index += part.before[place.source];
  return place;
}

std::vector<int64_t> Mixture::counts(int64_t samples) const {
  const Part& part = part_of(samples);
  std::vector<int64_t> counts = part.before;
  for (size_t i = 0; i < counts.size(); ++i)
    counts[i] += part.table.count(static_cast<int32_t>(i), samples - part.from_sample);
  return counts;
}

std::vector<Mixture::Begun> Mixture::begun(int64_t samples) const {
  std::vector<Begun> begun;
  for (const Part& part : parts_) {
    if (part.from_sample < samples) begun.push_back({part.from_sample, part.table.quotas()});
  }
  return begun;
}

}  // namespace ottava::data
