#include "apps/train/validation.h"

#include <cmath>
#include <utility>

#include "apps/checkpoints/due_results.h"
#include "apps/step/global_loss.h"
#include "apps/train/prompt_samples.h"
#include "core/contains.h"
#include "core/error.h"
#include "core/log.h"
#include "core/stopwatch.h"
#include "parallel/comm/agree.h"

namespace ottava {

namespace {

struct BrokenOff {
  Validation::Outcome outcome;
};

}  // namespace

Validation::Validation(const Experiment& experiment, RankGroups& ranks, const StopSignals* signals)
    : experiment_(experiment),
      ranks_(ranks),
      signals_(signals),
      sets_(open_validation_data(experiment, ranks)),
      left_out_(sets_.size()),
      tasks_(open_tasks(experiment)),
      prompts_(encode_prompts(experiment)) {
  require_same_tasks(tasks_, *ranks.control);
  if (const std::string warning = length_warning(prompts_, experiment); !warning.empty() && ranks.is_first())
    log::warning("{}", warning);
  if (sets_.empty()) return;
  const Tokenizer& tokenizer = *experiment.tokenizer;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    token_bytes_.push_back(tokenizer.is_special(id) ? 0
                                                    : static_cast<int32_t>(tokenizer.token_bytes(id).size()));
  }
}

Validation::Outcome Validation::run(int64_t step, const std::vector<std::string>& results,
                                    TrainingEngine& engine, const MemoryPlan& plan, MetricsReporter& reporter,
                                    HostSpans* spans) try {
  for (size_t i = 0; i < sets_.size(); ++i) {
    ValidationSet& set = sets_[i];
    if (!contains(results, validation_result(set.name))) continue;
    const HostSpans::Scope validating(spans, HostSpans::Track::host, "validate");
    const MetricsReporter::Validation result = validate(set, engine);
    if (ranks_.is_first())
      left_out_[i].report(
          set.data->loader().stats(),
          set.name.empty() ? " of the validation data" : fmt::format(" of the validation data {}", set.name),
          ranks_.world->size(), "validation.seq_len");
    reporter.log_validation(step, result, memory_maxima(engine.stream().device(), plan).shown);
  }
  for (const EncodedTask& task : tasks_) {
    if (!contains(results, evaluation_result(task.task.name))) continue;
    const HostSpans::Scope evaluating(spans, HostSpans::Track::host, "evaluate");
    score(step, task, engine, reporter);
  }
  if (contains(results, kSamplesResult)) {
    const HostSpans::Scope evaluating(spans, HostSpans::Track::host, "evaluate");
    reporter.log_samples(step, experiment_.config.evaluation.prompts,
                         continue_prompts(prompts_, experiment_, engine, [&] { require_all_go_on(); }));
  }
  return {};
} catch (const BrokenOff& broken) {
  const Config& c = experiment_.config;
  const bool is_known = c.metrics.enable_json_lines && c.checkpoint.enable && !c.checkpoint.load_only;
  log::info("Validation after step {} was interrupted; {}", step,
            is_known ? "the next start of the run does the rest" : "unfinished results are not reported");
  return broken.outcome;
}

void Validation::require_all_go_on(std::string problem) {
  double shared[2] = {is_signalled(signals_) ? 1.0 : 0.0, problem.empty() ? 0.0 : 1.0};
  reduce_on_host(*ranks_.control, view_of(shared, {2}), "validation goes on");
  if (shared[1] > 0) throw BrokenOff{{End::unread, std::move(problem)}};
  if (shared[0] > 0) throw BrokenOff{{End::stopped, {}}};
}

MetricsReporter::Validation Validation::validate(ValidationSet& set, TrainingEngine& engine) {
  const ValidationConfig& v = experiment_.config.validation;
  const Stopwatch watch;
  double sum = 0, tokens = 0, nats = 0, bytes = 0;
  const int64_t per_step = set.data->samples_per_step();
  for (int64_t i = 0; v.steps < 0 || i < v.steps; ++i) {
    const int64_t first = i * per_step;
    if (v.steps < 0 && first >= end_of(*set.data)) break;
    std::string problem;
    try {
      set.data->read(first);
    } catch (const Error& error) {
      problem = error.what();
    }
    require_all_go_on(std::move(problem));
    // The end of the text is known once it has been read to the end, which may be only now.
    const int64_t end = v.steps < 0 ? end_of(*set.data) : INT64_MAX;
    if (first >= end) break;
    // The last pass may have room for more: a loss that left it out would depend on the number of ranks.
    const HostTokens& batch = set.data->leave_out_from(end);
    sum += engine.validate(batch);
    tokens += set.data->valid_tokens();
    const std::vector<float> losses = engine.token_losses();
    for (size_t t = 0; t < batch.targets.size(); ++t) {
      const int32_t target = batch.targets[t];
      const int32_t count = target >= 0 && target < std::ssize(token_bytes_) ? token_bytes_[target] : 0;
      bytes += count;
      if (count > 0) nats += losses[t];
    }
  }
  const GlobalLoss of_bytes = global_loss(ranks_, engine.over_stages(nats), bytes);
  const GlobalLoss loss = global_loss(ranks_, engine.over_stages(sum), tokens);
  return {.name = set.name,
          .loss = loss.mean,
          .tokens_per_second = loss.tokens / watch.seconds() / ranks_.world->size(),
          .bits_per_byte = of_bytes.mean / std::log(2.0)};
}

void Validation::score(int64_t step, const EncodedTask& task, TrainingEngine& engine,
                       MetricsReporter& reporter) {
  const ChoiceScores scores = score_task(task, experiment_, engine, ranks_, [&] { require_all_go_on(); });
  MetricsReporter::Scalars scalars;
  for (const auto& [name, accuracy] : {std::pair{"acc", scores.acc}, std::pair{"acc_norm", scores.acc_norm},
                                       std::pair{"acc_bytes", scores.acc_bytes}}) {
    scalars.emplace_back(fmt::format("evaluation_metrics/{}/{}", scores.name, name), accuracy.value);
    scalars.emplace_back(fmt::format("evaluation_metrics/{}/{}_stderr", scores.name, name),
                         accuracy.standard_error);
  }
  reporter.log_evaluation(step, to_text(scores), scalars);
}

// The first batch is read for the first validation anyway; text without a window is found here.
void Validation::require_data() {
  fail_together(*ranks_.control, "validation", [&] {
    for (ValidationSet& set : sets_) set.data->read(0);
  });
}

// The number of samples is known once all have been tokenized, which some ranks find out before others. They
// share it, so that all stop together.
int64_t Validation::end_of(BatchSource& data) {
  int64_t known = data.loader().sources()[0].loader->samples_per_epoch().value_or(-1);
  reduce_on_host(*ranks_.control, view_of(&known, {1}), "validation samples", ReduceOp::max);
  return known >= 0 ? known : INT64_MAX;
}

}  // namespace ottava
