#include "apps/decide/rehearsal.h"

#include <algorithm>
#include <iterator>

#include "apps/decide/gemm_cache.h"
#include "apps/decide/workbench.h"
#include "apps/step/training_engine.h"
#include "core/cuda/blas_plans.h"
#include "core/cuda/fused_attention.h"
#include "core/cuda/runtime.h"
#include "core/log.h"
#include "core/ops/elementwise.h"
#include "parallel/comm/agree.h"

namespace ottava {
namespace {

using GemmChoice = cuda::BlasPlans::Choice;
constexpr const char* kGemmLibrary = "gemm library";

// Weights that keep activations about as large as their inputs, and tokens from all of the vocabulary.
void step_and_validate(const TrainingShape& shape, const StepPlan& plan, Stream& stream, RankGroups& ranks) {
  constexpr float kLargestWeight = 1.0f / 16;
  Arena arena(plan.memory, stream.device());
  fill_with_numbers(stream, arena.block(), kLargestWeight);
  TrainingEngine engine(shape, stream, arena, ranks, plan.matmul_workspace_bytes);
  // The square root of second moments would be NaN for negative numbers, and so would the weights that
  // validation reads.
  engine.parameters().clear_moments();
  const int64_t most = std::max({shape.micro_batches * shape.batch * shape.sequence,
                                 shape.validation_batch * shape.validation_sequence, shape.prompts});
  const std::vector<int32_t> indices = scattered_indices(most, shape.model.vocab_size), zeros(most, 0);
  const HostTokens tokens{indices, indices, zeros, zeros};
  engine.train_step(tokens, {.valid_tokens = most});
  if (shape.validation_batch > 0) engine.validate(tokens);
  if (shape.prompts > 0) engine.next_logits(std::span(zeros).first(shape.prompts), 0);
}

std::vector<GemmChoice> to_choices(const Decisions& decisions) {
  std::vector<GemmChoice> out;
  for (const Decisions::Entry& e : decisions.entries) {
    if (e.name.starts_with(kGemmDecisions) && e.name != kGemmLibrary)
      out.push_back({e.name.substr(kGemmDecisions.size()), e.value});
  }
  return out;
}

std::string name_of(const GemmChoice& choice) { return std::string(kGemmDecisions) + choice.problem; }

/// This rank's choices as decisions, each with where it came from.
std::vector<Decisions::Entry> explain(const std::vector<GemmChoice>& choices, const Decisions& before,
                                      const Decisions& cache) {
  std::vector<Decisions::Entry> out;
  for (const GemmChoice& c : choices) {
    std::string reason;
    if (c.candidates > 0) {
      reason = fmt::format("{:.4f} ms, the fastest of {}", c.milliseconds, c.candidates);
    } else if (before.find(name_of(c))) {
      reason = "as decided before";
    } else if (const Decisions::Entry* kept = cache.find(name_of(c))) {
      reason = kept->reason + ", kept from an earlier run";
    }
    out.push_back({name_of(c), c.algorithm, std::move(reason)});
  }
  return out;
}

std::vector<Decisions::Entry> measured_ones(const std::vector<GemmChoice>& choices,
                                            const std::vector<Decisions::Entry>& explained) {
  std::vector<Decisions::Entry> out;
  for (size_t i = 0; i < choices.size(); ++i)
    if (choices[i].candidates > 0) out.push_back(explained[i]);
  return out;
}

}  // namespace

void rehearse(Experiment& experiment, const StepPlan& plan, Stream& stream, RankGroups& ranks) {
  const std::string library = cuda::blas_library() + " on " + cuda::device_name(stream.device().index);
  const Decisions::Entry* before = experiment.decisions.find(kGemmLibrary);
  std::string complaint;
  if (before && before->value != library) {
    complaint = fmt::format(
        "the checkpoint's run chose matrix product algorithms with {}, but here is {}: start with "
        "--redecide; results may then differ in the last bits",
        before->value, library);
  }
  refuse_together(*ranks.control, "decisions", complaint);
  const bool is_first = ranks.is_first();
  const MeasurementCache kept = gemm_cache(experiment.config.training.gemm_cache, library);
  Decisions cache;
  if (is_first && !experiment.decides_afresh) cache = kept.read();
  cache = of_first_rank(cache, *ranks.control);

  cuda::BlasPlans& plans = stream.blas_plans();
  plans.set_sm_count(experiment.sm_budget.products);
  plans.adopt(to_choices(cache));
  plans.adopt(to_choices(experiment.decisions));  // these win
  plans.select(cuda::BlasPlans::Selection::fastest);
  step_and_validate(experiment.shape, plan, stream, ranks);
  plans.select(cuda::BlasPlans::Selection::first);
  ranks.world->stats().reset();

  const std::vector<GemmChoice> mine = plans.choices();
  const std::vector<Decisions::Entry> explained = explain(mine, experiment.decisions, cache);
  const Decisions shared = of_all_ranks({.entries = explained}, *ranks.control);
  Decisions measured = of_all_ranks({.entries = measured_ones(mine, explained)}, *ranks.control);
  std::erase_if(measured.entries, [&](const auto& e) { return *shared.find(e.name) != e; });
  if (ranks.control->size() > 1) plans.adopt(to_choices(shared));
  plans.latch();
  if (const auto& fused = experiment.shape.model_options.fused_attention) fused->latch();
  const auto decided = std::ranges::count_if(shared.entries, [&](const Decisions::Entry& e) {
    return experiment.decisions.find(e.name) && !measured.find(e.name);
  });
  std::vector<Decisions::Entry>& entries = experiment.decisions.entries;
  std::erase_if(entries, [](const Decisions::Entry& e) { return e.name.starts_with(kGemmDecisions); });
  entries.push_back({kGemmLibrary, library, "algorithms are this library's on this GPU"});
  std::ranges::copy(shared.entries, std::back_inserter(entries));
  require_equal_everywhere(*ranks.control, "decisions.json", experiment.decisions.hash());
  log::info("Matrix products: {} planned with {}: {} measured, {} as the checkpoint's run decided, {} of {}",
            shared.entries.size(), library, measured.entries.size(), decided,
            std::ssize(shared.entries) - std::ssize(measured.entries) - decided,
            kept.file().empty() ? "a cache (training.gemm_cache is off)" : kept.file());
  if (is_first) kept.write(measured.entries);
}

}  // namespace ottava
