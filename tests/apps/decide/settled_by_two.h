#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/decide/decide.h"
#include "core/error.h"
#include "core/log.h"
#include "tests/support/catch.h"
#include "tests/support/overrides.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

namespace ottava::test {

/// The experiment of rank 0 after two ranks on a CPU have settled what `config` leaves open. Both settle on
/// the same, or both refuse with the same ConfigError, which is thrown here.
inline Experiment settled_by_two(const Config& config, DecisionSource source) {
  std::vector<std::unique_ptr<Experiment>> settled(2);
  std::vector<std::string> refusals(2);
  run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    const auto rank = static_cast<size_t>(world.rank());
    settled[rank] = std::make_unique<Experiment>(resolve_experiment(config, nullptr, 2));
    RankGroups ranks = groups_over(world, settled[rank]->mesh);
    try {
      settle_decisions(*settled[rank], ranks, {DeviceType::cpu, 0}, source);
    } catch (const ConfigError& error) {
      refusals[rank] = error.what();
    }
  });
  CHECK(refusals[0] == refusals[1]);
  if (!refusals[0].empty()) fail<ConfigError>("both ranks", "{}", refusals[0]);
  const TrainingShape &first = settled[0]->shape, &second = settled[1]->shape;
  CHECK(settled[0]->decisions == settled[1]->decisions);
  CHECK(first.parameters.reduce_every_micro_batch == second.parameters.reduce_every_micro_batch);
  CHECK(first.cpu_products == second.cpu_products);
  CHECK(first.model_options.recompute == second.model_options.recompute);
  return std::move(*settled[0]);
}

/// A job of `options` in a folder of its own, with checkpoints and one sequence per micro-batch.
class JobOfTwo {
 public:
  explicit JobOfTwo(Overrides options) : options_(std::move(options)) { log::set_level(log::Level::warning); }
  Config config(const Overrides& more = {}) const {
    return load_config("", Overrides{"--job.dump_folder", folder_.path(), "--checkpoint.enable", "true",
                                     "--training.local_batch_size", "1"} +
                               options_ + more);
  }
  Experiment settle(DecisionSource source, const Overrides& more = {}) const {
    return settled_by_two(config(more), source);
  }
  /// As if a checkpoint of these circumstances had been saved with those decisions.
  void save(int step, const std::vector<Decisions::Entry>& entries) const {
    write(step, to_json({.made_for = settle(DecisionSource::afresh).decisions.made_for, .entries = entries}));
  }
  void write(int step, const std::string& text) const {
    const std::string path = folder_ / ("checkpoint/step-" + std::to_string(step));
    std::filesystem::create_directories(path);
    std::ofstream(path + "/decisions.json") << text;
  }

 private:
  Overrides options_;
  TemporaryFolder folder_;
};

}  // namespace ottava::test
