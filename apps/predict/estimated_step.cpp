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
    const int64_t blocks = std::ssize(recompute),
                  some = std::ranges::count(recompute, Recompute::all_but_attention),
                  others = std::ranges::count(recompute, Recompute::elementwise);
    if (some == 0 || others == 0 || some + others < blocks) return whole(shape);
    TrainingShape alike = shape;
    const auto all = [&](Recompute what) {
      alike.model_options.recompute.assign(blocks, what);
      return whole(alike);
    };
    return mean({{some, all(Recompute::all_but_attention)}, {others, all(Recompute::elementwise)}});
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
