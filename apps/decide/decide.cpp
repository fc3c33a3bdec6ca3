#include "apps/decide/decide.h"

#include <algorithm>
#include <functional>
#include <span>

#include "apps/checkpoints/steps_to_load.h"
#include "apps/config/float8_ratios.h"
#include "apps/config/resolved_float8.h"
#include "apps/decide/attention_choice.h"
#include "apps/decide/cpu_products.h"
#include "apps/decide/device_peaks.h"
#include "apps/decide/float8_speedup.h"
#include "apps/decide/memory_need.h"
#include "apps/decide/recompute_by_rank.h"
#include "apps/decide/rehearsal.h"
#include "apps/decide/tensor_parallel_overlap.h"
#include "core/contains.h"
#include "core/cuda/runtime.h"
#include "core/io/attempts.h"
#include "core/io/file.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "core/text/listed.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/patient_ranks.h"
#include "parallel/comm/agree.h"

namespace ottava {
namespace {

constexpr const char *kReduce = "parallelism.fsdp_reduce_every_microbatch",
                     *kKeepCodes = "quantize.linear.float8.keep_weight_codes",
                     *kRecompute = "activation_checkpoint.mode", *kLossChunks = "model.loss_chunk_tokens",
                     *kFreeMemory = "the memory that is free";

std::string with_s(int64_t count, std::string_view noun) { return fmt::format("{} {}s", count, noun); }

std::string circumstances(const Experiment& e, Device device, const auto& count) {
  return fmt::format(
      "{}, {} x {} of {} on each rank, {}{}", e.mesh.describe(), e.shape.micro_batches,
      count(e.shape.batch, "sequence"), count(e.shape.sequence, "token"), device.is_gpu() ? "cuda" : "cpu",
      e.sm_budget.products > 0 ? fmt::format(", products on {} SMs", e.sm_budget.products) : "");
}
std::string circumstances(const Experiment& e, Device device) {
  return circumstances(e, device, [](int64_t count, std::string_view noun) { return counted(count, noun); });
}

// Decisions of the newest checkpoint that has readable ones for these circumstances, which earlier versions
// wrote with "1 sequences". Broken checkpoints are reported when they are loaded.
Decisions saved_decisions(const Experiment& e, Device device, GivenUp& unreadable) {
  const std::string ways[] = {circumstances(e, device), circumstances(e, device, with_s)};
  const std::vector<checkpoint::SavedStep> steps = steps_to_load(e.config, unreadable).steps;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      const std::string path = step->path + "/decisions.json";
      const std::string text =
          unreadable.attempt(step->path, {.complaint = fmt::format("{} could not be read", path)},
                             [&] { return read_file(path); });
      Decisions saved = parse_decisions(text, path);
      if (contains(ways, saved.made_for)) return saved;
      if (!saved.entries.empty())
        log::info("Decisions of {} were for another layout ({}), so they are made again", step->path,
                  saved.made_for);
      return {};
    } catch (const FileError&) {
      continue;
    }
  }
  return {};
}

std::string mib(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

// Spends memory to save work, if there is enough: the first outcome takes the most memory, the last is always
// possible.
struct MemoryDecision {
  OpenDecision open;
  const char *gain, *item;   ///< "less traffic", "whole gradients"; the item is of all but the last
  const char* after_change;  ///< what --redecide brings, where a checkpoint's is followed
};

struct MemoryOption {
  bool FsdpOptions::*option;
  bool with_most_memory;  ///< its value that takes more
};

MemoryDecision with_outcomes(MemoryDecision out, const Experiment& e, MemoryOption of) {
  for (const bool value : {of.with_most_memory, !of.with_most_memory}) {
    out.open.outcomes.push_back({value ? "true" : "false", e.shape});
    out.open.outcomes.back().shape.parameters.*of.option = value;
  }
  return out;
}

MemoryDecision reduction_decision(const Experiment& e) {
  return with_outcomes({.open = {.name = kReduce, .by = kFreeMemory},
                        .gain = "less traffic",
                        .item = "whole gradients",
                        .after_change = "which changes the order of gradient sums"},
                       e, {.option = &FsdpOptions::reduce_every_micro_batch, .with_most_memory = false});
}

// No result depends on it, so that a start with less memory than the checkpoint's run had goes on with more
// recomputation.
//
// Outcomes are those that ranks of a pipeline have in common; decide_recompute() lets them differ.
OpenDecision recompute_decision(const Experiment& e) {
  OpenDecision out{.name = kRecompute, .by = kFreeMemory};
  const RecomputeByRank by_rank(e.shape);
  for (size_t i = 0; i < by_rank.count(); ++i) {
    TrainingShape shape = e.shape;
    shape.model_options.recompute = by_rank.blocks(by_rank.on_all(i));
    if (out.outcomes.empty() ||
        shape.model_options.recompute != out.outcomes.back().shape.model_options.recompute)
      out.outcomes.push_back({by_rank.text(by_rank.on_all(i)), std::move(shape)});
  }
  return out;
}

MemoryDecision weight_codes_decision(const Experiment& e) {
  return with_outcomes({.open = {.name = kKeepCodes, .by = kFreeMemory},
                        .gain = "weights are quantized and gathered once per step",
                        .item = "codes of whole weights",
                        .after_change = "which changes no bit"},
                       e, {.option = &FsdpOptions::keeps_float8_codes, .with_most_memory = true});
}

// True if it is left to the run, on a GPU, and a micro-batch of training or validation has more tokens than
// that.
bool leaves_loss_chunks_open(const Experiment& e) {
  const int64_t validation =
      e.shape.validation_batch * e.shape.validation_sequence / e.mesh.size(MeshAxis::cp);
  return e.config.model.loss_chunk_tokens == 0 && e.compute_capability.has_value() &&
         std::max(e.tokens_per_micro_batch(), validation) > kFewestLossTokens;
}

MemoryDecision loss_chunk_decision(const Experiment& e) {
  MemoryDecision out{.open = {.name = kLossChunks, .by = kFreeMemory},
                     .gain = "fewer passes over the output layer's gradient",
                     .item = "logits of more tokens",
                     .after_change = "which changes the order of gradient sums"};
  for (int64_t tokens = 4 * kFewestLossTokens; tokens >= kFewestLossTokens; tokens /= 2) {
    out.open.outcomes.push_back({std::to_string(tokens), e.shape});
    out.open.outcomes.back().shape.model_options.loss_chunk_rows = tokens;
  }
  return out;
}

struct Settled {
  Decisions::Entry entry;
  TrainingShape shape;  ///< of the step with it
};

std::string enough_text(std::string_view gain, const MemoryNeed& need) {
  return fmt::format("{}, and {} of {} free suffice", gain, mib(need.bytes), mib(need.available));
}
std::string too_much_text(std::string_view item, const MemoryNeed& need) {
  return fmt::format("{} would take {} of {} free", item, mib(need.bytes), mib(need.available));
}

Settled decide(const MemoryDecision& d, const StepNeeds& needs) {
  const auto& [name, by, outcomes] = d.open;
  std::string reason;
  for (const OpenDecision::Outcome& outcome : std::span(outcomes).first(outcomes.size() - 1)) {
    const MemoryNeed need = tightest(needs(outcome.shape));
    if (need.fits()) return {{name, outcome.value, enough_text(d.gain, need)}, outcome.shape};
    reason = too_much_text(d.item, need);
  }
  return {{name, outcomes.back().value, reason}, outcomes.back().shape};
}

// Each rank of a pipeline, which cares only how much of its own blocks is kept, goes on to the next
// mode until its step fits, and from the one before in smaller steps.
Settled decide_recompute(const Experiment& e, const StepNeeds& needs) {
  using Step = RecomputeByRank::Step;
  const RecomputeByRank by_rank(e.shape);
  RecomputeByRank::Choices choices = by_rank.on_all(0);
  Settled out{.entry = {}, .shape = e.shape};
  std::vector<MemoryNeed> of_ranks, before(by_rank.ranks());  // what did not fit
  const auto recompute_until_it_fits = [&](Step step) {
    for (bool changes = true; changes;) {
      changes = false;
      out.shape.model_options.recompute = by_rank.blocks(choices);
      of_ranks = needs(out.shape);
      for (size_t rank = 0; rank < by_rank.ranks(); ++rank) {
        if (of_ranks[rank].fits()) continue;
        const bool has_more = by_rank.recompute_more(choices, rank, step);
        if (has_more || before[rank].bytes == 0) before[rank] = of_ranks[rank];
        changes |= has_more;
      }
    }
  };
  recompute_until_it_fits(Step::by_modes);
  const RecomputeByRank::Choices modes = choices;
  for (size_t rank = 0; rank < by_rank.ranks(); ++rank) by_rank.recompute_less(choices, rank);
  if (choices != modes) recompute_until_it_fits(Step::by_parts);
  const auto tight = std::ranges::min_element(of_ranks, {}, &MemoryNeed::spare);
  const size_t rank = tight - of_ranks.begin();
  out.entry = {kRecompute, by_rank.text(choices),
               tight->fits() ? enough_text("the fastest that fits", *tight)
                             : too_much_text("less recomputation", before[rank])};
  if (by_rank.ranks() > 1) out.entry.reason += fmt::format(" on pp rank {}", rank);
  return out;
}

// What a checkpoint says, if that can be followed.
void require_followable(const MemoryDecision& d, const Decisions::Entry& before, const StepNeeds& needs) {
  const auto& outcomes = d.open.outcomes;
  const auto outcome = std::ranges::find(outcomes, before.value, &OpenDecision::Outcome::value);
  if (outcome == outcomes.end()) {
    fail<ConfigError>("decisions", "the checkpoint has {} = '{}', expected one of {}: start with --redecide",
                      before.name, before.value, listed(outcomes, [](const auto& one) { return one.value; }));
  }
  if (outcome + 1 == outcomes.end()) return;
  const MemoryNeed need = tightest(needs(outcome->shape));
  if (need.bytes > need.available) {
    fail<ConfigError>("decisions",
                      "the checkpoint's run used {} = {}, which needs {} here, but only {} are free: free "
                      "memory, or start with --redecide, {}",
                      before.name, before.value, mib(need.bytes), mib(need.available), d.after_change);
  }
}

// Rank 0's decisions: made before, from a file, or `measured` here. A shape that the file lacks has none;
// speedups_of() says so if it is needed.
std::vector<Decisions::Entry> float8_ratios(const Experiment& e, const Decisions& measured,
                                            const Decisions& saved) {
  const std::string& path = e.config.float8.auto_decisions;
  std::optional<Decisions> file;
  std::vector<Decisions::Entry> out;
  const auto take = [&](std::string_view name) {
    const Decisions::Entry* entry = saved.find(name);
    if (!entry) entry = measured.find(name);
    if (entry) out.push_back(*entry);
    return entry != nullptr;
  };
  for (const ProductShape& shape : float8_candidates(e.shape.float8_policy, e.tokens_per_micro_batch())) {
    const std::string name = decision_name(shape);
    if (take(name)) continue;
    if (!file) file = read_auto_decisions(e.config);
    if (const Decisions::Entry* entry = file->find(name))
      out.push_back({name, entry->value, fmt::format("{}, of {}", entry->reason, path)});
  }
  take(kFloat8StepDecision);
  return out;
}

// What the checkpoint's run decided comes before what is decided afresh, which takes the memory that this
// leaves: so it is enough that it fits with everything else at its least.
void follow_checkpoint(Experiment& e, const StepNeeds& needs, const Decisions& saved) {
  const auto follow = [&](const MemoryDecision& d) {
    const Decisions::Entry* before = saved.find(d.open.name);
    if (!before) return;
    require_followable(d, *before, needs);
    e.shape = std::ranges::find(d.open.outcomes, before->value, &OpenDecision::Outcome::value)->shape;
    e.decisions.entries.push_back(*before);
    log_decision(*before, true);
  };
  if (leaves_recompute_open(e))
    e.shape.model_options.recompute = recompute_choices(e.shape.model.layers).back().blocks;
  if (leaves_weight_codes_open(e)) e.shape.parameters.keeps_float8_codes = false;
  if (leaves_reduction_open(e)) follow(reduction_decision(e));
  if (leaves_weight_codes_open(e)) follow(weight_codes_decision(e));
  if (leaves_loss_chunks_open(e)) follow(loss_chunk_decision(e));
}

// Decides what is not decided yet. Whole gradients come first, since they change what a step computes, and
// beside recomputed norms and activations, which cost less time than sums after every micro-batch. So do the
// logits of more tokens, unless codes are open, too: these save more time for the memory that they take.
void decide_all(Experiment& e, const StepNeeds& needs, const std::function<void(Decisions::Entry)>& record) {
  const auto settle = [&](Settled settled) {
    e.shape = std::move(settled.shape);
    record(std::move(settled.entry));
  };
  const bool has_codes = leaves_weight_codes_open(e) && !e.decisions.find(kKeepCodes),
             has_chunks = leaves_loss_chunks_open(e) && !e.decisions.find(kLossChunks);
  if (has_codes) e.shape.parameters.keeps_float8_codes = false;
  if (leaves_recompute_open(e))
    e.shape.model_options.recompute = std::vector(e.shape.model.layers, Recompute::elementwise);
  if (leaves_reduction_open(e) && !e.decisions.find(kReduce)) settle(decide(reduction_decision(e), needs));
  if (leaves_recompute_open(e)) {
    if (has_chunks && !has_codes) e.shape = decide(loss_chunk_decision(e), needs).shape;
    settle(decide_recompute(e, needs));
  }
  if (has_codes) settle(decide(weight_codes_decision(e), needs));
  if (has_chunks) settle(decide(loss_chunk_decision(e), needs));
}

// FP8 where it is faster, by rank 0's ratios: all ranks have the same GPU, and only rank 0 reads the file.
void decide_float8(Experiment& e, RankGroups& ranks, Device device, const Decisions& saved) {
  Decisions measured;
  if (e.config.float8.auto_decisions.empty()) {
    if (device.is_gpu()) {
      require_equal_everywhere(*ranks.control, "the GPU model, on which quantize.linear.float8.auto measures",
                               checkpoint::text_checksum(cuda::device_name(device.index)));
    }
    const auto shapes = float8_candidates(e.shape.float8_policy, e.tokens_per_micro_batch());
    if (!std::ranges::all_of(shapes, [&](const auto& s) { return saved.find(decision_name(s)); }))
      measured.entries = measure_as_decided(
          e, [&](const Experiment& one) { return as_memory_allows(one, ranks, device); },
          [&](const Experiment& one) { return measure_float8(one, ranks, device); });
  }
  fail_together(*ranks.control, "decisions", [&] {
    if (ranks.is_first())
      std::ranges::copy(float8_ratios(e, measured, saved), std::back_inserter(e.decisions.entries));
  });
  e.decisions = of_first_rank(e.decisions, *ranks.control);
  for (const Decisions::Entry& entry : e.decisions.entries) {
    if (entry.name.starts_with("quantize.")) log_decision(entry);
  }
  apply_measured_float8(e, e.decisions);
}

}  // namespace

std::vector<OpenDecision> open_decisions(const Experiment& e) {
  std::vector<OpenDecision> out;
  if (e.shape.float8.is_on() && e.config.float8.automatic && e.config.float8.auto_decisions.empty()) {
    Experiment none = e;
    Decisions slower;
    for (const ProductShape& shape : float8_candidates(e.shape.float8_policy, e.tokens_per_micro_batch()))
      slower.entries.push_back({decision_name(shape), "0.5", ""});
    apply_measured_float8(none, slower);
    out.push_back({.name = "quantize.linear.float8.auto",
                   .by = "the time of each shape on the GPU",
                   .outcomes = {{"FP8 for every shape", e.shape}, {"FP8 for none", std::move(none.shape)}}});
  }
  std::ranges::move(open_cpu_products(e), std::back_inserter(out));
  std::ranges::move(open_overlap(e), std::back_inserter(out));
  if (leaves_reduction_open(e)) out.push_back(reduction_decision(e).open);
  if (leaves_recompute_open(e)) out.push_back(recompute_decision(e));
  if (leaves_weight_codes_open(e)) out.push_back(weight_codes_decision(e).open);
  if (leaves_loss_chunks_open(e)) {
    out.push_back(loss_chunk_decision(e).open);
    std::ranges::reverse(out.back().outcomes);
  }
  return out;
}

Experiment decided_by_memory(Experiment e, const StepNeeds& needs) {
  decide_all(e, needs, [&](Decisions::Entry entry) { e.decisions.entries.push_back(std::move(entry)); });
  return e;
}

Experiment as_memory_allows(Experiment e, RankGroups& ranks, Device device) {
  decide_all(
      e, [&](const TrainingShape& shape) { return memory_needs(e, shape, ranks, device); },
      [](const Decisions::Entry&) {});
  return e;
}

void settle_decisions(Experiment& e, RankGroups& ranks, Device device, DecisionSource source) {
  const std::string made_for = circumstances(e, device);
  e.decides_afresh = source == DecisionSource::afresh;
  Decisions saved;
  checkpoint::PatientRanks(*ranks.control).on_rank_0([&] {
    if (source == DecisionSource::checkpoint) saved = saved_decisions(e, device, ranks.unreadable);
  });
  saved = of_first_rank(saved, *ranks.control);
  e.decisions = {.made_for = made_for};
  for (const Decisions::Entry& entry : saved.entries) {
    if (entry.name.starts_with(kGemmDecisions))
      e.decisions.entries.push_back(entry);  // followed in rehearse()
  }
  settle_peaks(e, ranks, device, saved);
  settle_cpu_products(e, *ranks.control, device, saved);
  settle_attention(e, ranks, device, saved);
  if (e.shape.float8.is_on() && e.config.float8.automatic) decide_float8(e, ranks, device, saved);
  settle_overlap(e, ranks, device, saved);
  const auto needs = [&](const TrainingShape& shape) { return memory_needs(e, shape, ranks, device); };
  follow_checkpoint(e, needs, saved);
  decide_all(e, needs, [&](Decisions::Entry entry) {
    log_decision(entry);
    e.decisions.entries.push_back(std::move(entry));
  });
  require_equal_everywhere(*ranks.control, "decisions.json", e.decisions.hash());
}

}  // namespace ottava
