#include "apps/predict/estimated_step.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace ottava {
namespace {

// Estimates of one experiment's shapes, each made once.
class StepEstimates {
 public:
  StepEstimates(const Experiment& given, Device device, const Machine& machine)
      : e_(given), device_(device), machine_(machine) {}

  StepFigures of(const TrainingShape& shape) {
    const std::vector<Recompute>& recompute = shape.model_options.recompute;
    const int64_t blocks = std::ssize(recompute);
    const auto count = [&](Recompute what) { return std::ranges::count(recompute, what); };
    TrainingShape alike = shape;
    const auto all = [&](Recompute what) {
      alike.model_options.recompute.assign(blocks, what);
      return whole(alike);
    };
    // What mode auto comes to between two modes (recompute_choices()).
    for (const auto& [less, more] : {std::pair(Recompute::nothing, Recompute::elementwise),
                                     std::pair(Recompute::elementwise, Recompute::all_but_attention)}) {
      const int64_t some = count(more), others = count(less);
      if (some > 0 && others > 0 && some + others == blocks)
        return mean({{some, all(more)}, {others, all(less)}});
    }
    return whole(shape);
  }

 private:
  StepFigures whole(const TrainingShape& shape) {
    const auto [known, is_new] = known_.try_emplace(
        std::tuple(shape.parameters.reduce_every_micro_batch, shape.parameters.keeps_float8_codes,
                   shape.model_options.loss_chunk_rows, shape.model_options.recompute));
    if (is_new) {
      Experiment e = e_;
      e.shape = shape;
      known->second = estimate_step(e, device_, machine_);
    }
    return known->second;
  }

  const Experiment& e_;
  const Device device_;
  const Machine& machine_;
  std::map<std::tuple<bool, bool, int64_t, std::vector<Recompute>>, StepFigures> known_;
};

}  // namespace

Decided<StepFigures> estimate_decided(const Experiment& given, Device device, const Machine& machine,
                                      double limit_gib) {
  if (given.shape.pipeline.is_on()) {
    auto [decided, roles] = decided_step(given, device, limit_gib, &machine, Packing::none);
    return {std::move(decided), figures_of(roles, machine)};
  }
  StepEstimates estimates(given, device, machine);
  return decide_and_record(
      given, device, limit_gib, [&](const TrainingShape& shape) { return estimates.of(shape); },
      [&](const StepFigures& figures) {
        return std::vector<RankBytes>{
            {.step = figures.alive_bytes + snapshot_beside(given, device, 0), .besides = figures.nccl_bytes}};
      });
}

}  // namespace ottava
