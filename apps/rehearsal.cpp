#include "apps/rehearsal.h"

#include <algorithm>

#include "core/cuda/blas_plans.h"
#include "core/cuda/fused_attention.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/log.h"
#include "parallel/agree.h"
#include "parallel/bootstrap.h"

namespace ottava {
namespace {

using Choice = cuda::BlasPlans::Choice;
constexpr const char* kLibrary = "gemm library";

void step_and_validate(const TrainingShape& shape, const StepPlan& plan, Stream& stream, RankGroups& ranks) {
  Arena arena(plan.memory, stream.device());
  TrainingEngine engine(shape, stream, arena, ranks, plan.matmul_workspace_bytes);
  const int64_t most = std::max(shape.micro_batches * shape.batch * shape.sequence,
                                shape.validation_batch * shape.validation_sequence);
  const std::vector<int32_t> zeros(static_cast<size_t>(most), 0);
  const HostTokens tokens{zeros, zeros, zeros, zeros};
  engine.train_step(tokens, {.valid_tokens = 1});
  if (shape.validation_batch > 0) engine.validate(tokens);
}

Decisions to_decisions(const std::string& library, const std::vector<Choice>& choices) {
  Decisions out;
  out.entries.push_back({kLibrary, library, "algorithms are this library's on this GPU"});
  for (const Choice& c : choices) {
    out.entries.push_back({std::string(kGemmDecisions) + c.problem, c.algorithm,
                           c.candidates > 0
                               ? fmt::format("{:.4f} ms, the fastest of {}", c.milliseconds, c.candidates)
                               : "as decided before"});
  }
  return out;
}

std::vector<Choice> to_choices(const Decisions& decisions) {
  std::vector<Choice> out;
  for (const Decisions::Entry& e : decisions.entries) {
    if (e.name.starts_with(kGemmDecisions) && e.name != kLibrary)
      out.push_back({e.name.substr(kGemmDecisions.size()), e.value});
  }
  return out;
}

}  // namespace

void rehearse(Experiment& experiment, const StepPlan& plan, Stream& stream, RankGroups& ranks) {
  const std::string library = cuda::blas_library() + " on " + cuda::device_name(stream.device().index);
  const Decisions::Entry* before = experiment.decisions.find(kLibrary);
  std::string complaint;
  if (before && before->value != library) {
    complaint = fmt::format(
        "algorithms of matrix products were decided with {}, and here is {}: start with --redecide, after "
        "which sums are made in another order",
        before->value, library);
  }
  if (ranks.control->size() > 1) {
    require_no_complaint(*ranks.control, complaint);
  } else if (!complaint.empty()) {
    fail<ConfigError>("decisions", "{}", complaint);
  }
  cuda::BlasPlans& plans = stream.blas_plans();
  plans.set_sm_count(experiment.sm_budget.products);
  plans.adopt(to_choices(experiment.decisions));
  plans.select(cuda::BlasPlans::Selection::fastest);
  step_and_validate(experiment.shape, plan, stream, ranks);
  plans.select(cuda::BlasPlans::Selection::first);
  ranks.world->stats().reset();

  const std::vector<Choice> mine = plans.choices();
  Decisions shared = to_decisions(library, mine);
  if (ranks.control->size() > 1) {
    shared = parse_decisions(CommunicatorBootstrap(*ranks.control).all_gather(to_json(shared)).front(),
                             "decisions of rank 0");
    plans.adopt(to_choices(shared));
  }
  plans.latch();
  if (const auto& fused = experiment.shape.model_options.fused_attention) fused->latch();
  std::vector<Decisions::Entry>& entries = experiment.decisions.entries;
  std::erase_if(entries, [](const Decisions::Entry& e) { return e.name.starts_with(kGemmDecisions); });
  entries.insert(entries.end(), shared.entries.begin(), shared.entries.end());
  require_equal_everywhere(*ranks.control, "decisions.json", experiment.decisions.hash());
  const auto measured =
      std::count_if(mine.begin(), mine.end(), [](const Choice& c) { return c.candidates > 0; });
  log::info("Matrix products: {} planned with {}: {} measured, {} as decided before", mine.size(), library,
            measured, static_cast<int64_t>(mine.size()) - measured);
}

}  // namespace ottava
