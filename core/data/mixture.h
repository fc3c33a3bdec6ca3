#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ottava::data {

/// The order in which one period of samples takes its sources. Source i has an integer quota q of the P =
/// kPeriod slots (its share of the weights, rounded by largest remainders). Its j-th slot may be any in
/// [floor(j P / q), ceil((j + 1) P / q)); each slot goes to the source that may take it and whose range ends
/// first, ties by index. So in any prefix every source is less than one sample away from its exact share.
class MixtureTable {
 public:
  static constexpr int64_t kPeriod = 65536;

  /// Weights need not add up to 1; a source of weight 0 has no slot. Throws ConfigError for weights that are
  /// negative, not finite, all 0, or below 1 / kPeriod of the sum.
  explicit MixtureTable(const std::vector<double>& weights);

  struct Place {
    int32_t source = 0;
    int64_t index = 0;  ///< among the samples of its source
  };
  /// Where sample s >= 0 of an endless sequence of periods comes from.
  Place at(int64_t sample) const;
  /// Samples of a source among the first `samples`.
  int64_t count(int32_t source, int64_t samples) const;
  /// Slots of each source; they sum to kPeriod.
  const std::vector<int64_t>& quotas() const { return quotas_; }

 private:
  std::vector<int64_t> quotas_;
  std::vector<int32_t> source_, rank_;       // of each slot
  std::vector<std::vector<int32_t>> slots_;  // of each source, ascending
};

/// A mixture whose weights may change at given samples. From stage to stage, each source continues where it
/// was. Sample s is found in O(log stages), so the position of a run is one number.
class Mixture {
 public:
  struct Stage {
    int64_t from_sample = 0;
    std::vector<double> weights;  ///< per source
  };
  /// The first stage begins at 0, each other one later than the one before; each has a weight for every
  /// source. Throws ConfigError otherwise.
  explicit Mixture(const std::vector<Stage>& stages);

  MixtureTable::Place at(int64_t sample) const;
  /// Samples of each source among the first `samples`.
  std::vector<int64_t> counts(int64_t samples) const;

  struct Begun {
    int64_t from_sample = 0;
    std::vector<int64_t> quotas;  ///< per source
  };
  /// What decides the order of the first `samples`: the stages that have begun by then.
  std::vector<Begun> begun(int64_t samples) const;

 private:
  struct Part {
    int64_t from_sample;
    MixtureTable table;
    std::vector<int64_t> before;  // samples of each source in earlier stages
  };
  const Part& part_of(int64_t sample) const;
  std::vector<Part> parts_;
};

}  // namespace ottava::data
