#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/train/trainer.h"
#include "core/io/json.h"
#include "tests/support/overrides.h"
#include "tests/support/temporary_folder.h"

namespace ottava::test {

/// Repeatable prose of made-up words, `documents` of them with an empty line between: the same on every
/// machine.
std::string generated_text(int documents, uint32_t seed = 1);

/// A small model in FP32 on generated text with the shipped tokenizer, in a folder of its own. Runs differ by
/// overrides.
class TinyTraining {
 public:
  using Overrides = test::Overrides;

  TinyTraining();

  /// What every configuration here has: its folder, the model and the text, and no measuring of speeds.
  Overrides model_and_text(const std::string& run) const;
  /// Every second step on one sequence of 16 tokens.
  Overrides validation() const;
  /// The configuration of the run that writes into folder() / `run`.
  Config config(const std::string& run, const Overrides& overrides = {}) const;
  /// A trainer of it on one rank; it reports nothing but warnings.
  struct Run {
    std::unique_ptr<RankGroups> ranks;
    std::unique_ptr<Trainer> trainer;
    Trainer* operator->() { return trainer.get(); }
  };
  Run start(const std::string& run, const Overrides& overrides = {},
            const StopSignals* signals = nullptr) const;
  /// The same on any device, decisions settled as the program does.
  Run start_on(Device device, const std::string& run, const Overrides& overrides = {}) const;

  std::string operator/(const std::string& name) const { return folder_ / name; }
  const std::string& text_path() const { return text_; }

 private:
  TemporaryFolder folder_;
  std::string text_;
};

/// Every element of weights and moments, and whatever else decides how a run goes on: equal only if bitwise
/// equal.
struct Everything {
  std::vector<std::vector<uint8_t>> tensors;
  TrainingState state;
  bool operator==(const Everything&) const = default;
};
Everything everything_of(Trainer& trainer);

/// The lines of a run's metrics.jsonl that are whole: of a run that is on, the last may be half written.
std::vector<Json> logged_lines(const std::string& run_folder);
/// A column of the run's metrics.jsonl, in the order of its lines.
std::vector<double> logged(const std::string& run_folder, const std::string& name);

}  // namespace ottava::test
