#include "apps/decide/decide.h"

#include <algorithm>
#include <filesystem>

#include "apps/config/resolved_float8.h"
#include "apps/decide/attention_choice.h"
#include "apps/decide/cpu_products.h"
#include "apps/decide/device_peaks.h"
#include "apps/decide/float8_speedup.h"
#include "apps/decide/memory_need.h"
#include "apps/decide/rehearsal.h"
#include "core/cuda/runtime.h"
#include "core/io/file.h"
#include "core/log.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/ranks/agree.h"

namespace ottava {
namespace {

constexpr const char *kReduce = "parallelism.fsdp_reduce_every_microbatch",
                     *kKeepCodes = "quantize.linear.float8.keep_weight_codes";

std::string circumstances(const Experiment& e, Device device) {
  return fmt::format(
      "{}, {} x {} sequences of {} tokens on each rank, {}{}", e.mesh.describe(), e.shape.micro_batches,
      e.shape.batch, e.shape.sequence, device.type == DeviceType::cuda ? "cuda" : "cpu",
      e.sm_budget.products > 0 ? fmt::format(", products on {} SMs", e.sm_budget.products) : "");
}

// Decisions of the newest checkpoint that has readable ones for these circumstances. A broken checkpoint is
// said to be so when it is loaded.
Decisions saved_decisions(const Experiment& e, const std::string& made_for) {
  const Config& c = e.config;
  if (!c.checkpoint.enable) return {};
  std::vector<checkpoint::SavedStep> steps =
      checkpoint::list_steps((std::filesystem::path(c.job.dump_folder) / c.checkpoint.folder).string());
  if (c.checkpoint.load_step >= 0)
    std::erase_if(steps, [&](const auto& s) { return s.step != c.checkpoint.load_step; });
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      const std::string path = step->path + "/decisions.json";
      Decisions saved = parse_decisions(read_file(path), path);
      if (saved.made_for == made_for) return saved;
      if (!saved.entries.empty())
        log::info("Decisions of {} were for another layout ({}) and are made again", step->path,
                  saved.made_for);
      return {};
    } catch (const FileError&) {
      continue;
    }
  }
  return {};
}

std::string mib(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

// More memory for less work where it suffices: the first outcome is the one that takes it.
struct MemoryDecision {
  OpenDecision open;
  const char *gain, *item;   ///< "less traffic", "whole gradients"
  const char* after_change;  ///< what --redecide brings
};

MemoryDecision memory_decision(const Experiment& e, const char* name, bool FsdpOptions::*option, bool first) {
  MemoryDecision out{.open = {.name = name, .by = "the memory that is free", .outcomes = {}}};
  for (const bool value : {first, !first}) {
    out.open.outcomes.push_back({value ? "true" : "false", e.shape});
    out.open.outcomes.back().shape.parameters.*option = value;
  }
  return out;
}

MemoryDecision reduction_decision(const Experiment& e) {
  MemoryDecision out = memory_decision(e, kReduce, &FsdpOptions::reduce_every_micro_batch, false);
  out.gain = "less traffic";
  out.item = "whole gradients";
  out.after_change = "after which gradients are summed in another order";
  return out;
}

MemoryDecision weight_codes_decision(const Experiment& e) {
  MemoryDecision out = memory_decision(e, kKeepCodes, &FsdpOptions::keeps_float8_codes, true);
  out.gain = "weights are quantized and gathered once per step";
  out.item = "codes of whole weights";
  out.after_change = "which changes no bit";
  return out;
}

Decisions::Entry decide(const MemoryDecision& d, const MemoryNeed& need) {
  const auto& [name, by, outcomes] = d.open;
  if (need.fits())
    return {name, outcomes[0].value,
            fmt::format("{}, and {} of {} free suffice", d.gain, mib(need.bytes), mib(need.available))};
  return {name, outcomes[1].value,
          fmt::format("{} would take {}, of {} free", d.item, mib(need.bytes), mib(need.available))};
}

// Rank 0's: decided before, of a file, or what was `measured` here. A shape that the file lacks has none:
// speedups_of() says so where it is needed.
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

// FP8 where it is faster, by rank 0's ratios: all ranks have the same GPU, and only rank 0 reads the file.
void decide_float8(Experiment& e, RankGroups& ranks, Device device, const Decisions& saved) {
  Decisions measured;
  if (e.config.float8.auto_decisions.empty()) {
    if (device.type == DeviceType::cuda) {
      require_equal_everywhere(*ranks.control, "the GPU model, on which quantize.linear.float8.auto measures",
                               checkpoint::text_checksum(cuda::device_name(device.index)));
    }
    const auto shapes = float8_candidates(e.shape.float8_policy, e.tokens_per_micro_batch());
    if (!std::ranges::all_of(shapes, [&](const auto& s) { return saved.find(decision_name(s)); }))
      measured.entries = measure_float8(e, ranks, device);
  }
  std::string complaint;
  if (ranks.control->rank() == 0) {
    try {
      std::ranges::copy(float8_ratios(e, measured, saved), std::back_inserter(e.decisions.entries));
    } catch (const Error& error) {
      complaint = error.what();
    }
  }
  require_no_complaint(*ranks.control, complaint);
  e.decisions = of_first_rank(e.decisions, *ranks.control);
  for (const Decisions::Entry& entry : e.decisions.entries) {
    if (entry.name.starts_with("quantize."))
      log::info("Decided: {} = {} ({})", entry.name, entry.value, entry.reason);
  }
  apply_measured_float8(e, e.decisions);
}

void settle_by_memory(Experiment& e, const MemoryDecision& d, RankGroups& ranks, Device device,
                      const Decisions& saved) {
  const auto& [name, by, outcomes] = d.open;
  const MemoryNeed need = memory_need(e, outcomes[0].shape, ranks, device);
  const Decisions::Entry* before = saved.find(name);
  if (before && before->value == outcomes[0].value && need.bytes > need.available) {
    fail<ConfigError>("decisions",
                      "{} = {} was decided when the checkpoint was saved; now that needs {} and {} are "
                      "free: free memory, or start with --redecide, {}",
                      name, before->value, mib(need.bytes), mib(need.available), d.after_change);
  }
  e.decisions.entries.push_back(before ? *before : decide(d, need));
  e.decisions = of_first_rank(e.decisions, *ranks.control);
  const Decisions::Entry& entry = *e.decisions.find(name);
  const auto outcome = std::ranges::find(outcomes, entry.value, &OpenDecision::Outcome::value);
  if (outcome == outcomes.end()) {
    fail<ConfigError>("decisions",
                      "the checkpoint says {} = '{}', which is neither true nor false: start with --redecide",
                      name, entry.value);
  }
  e.shape = outcome->shape;
  log::info("Decided{}: {} = {} ({})", before ? " before" : "", entry.name, entry.value, entry.reason);
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
  if (leaves_reduction_open(e)) out.push_back(reduction_decision(e).open);
  if (leaves_weight_codes_open(e)) out.push_back(weight_codes_decision(e).open);
  return out;
}

void settle_decisions(Experiment& e, RankGroups& ranks, Device device, DecisionSource source) {
  const std::string made_for = circumstances(e, device);
  e.decides_afresh = source == DecisionSource::afresh;
  Decisions saved;
  if (source == DecisionSource::checkpoint && ranks.control->rank() == 0)
    saved = saved_decisions(e, made_for);
  saved = of_first_rank(saved, *ranks.control);
  e.decisions = {.made_for = made_for, .entries = {}};
  for (const Decisions::Entry& entry : saved.entries) {
    if (entry.name.starts_with(kGemmDecisions))
      e.decisions.entries.push_back(entry);  // followed in rehearse()
  }
  settle_peaks(e, ranks, device, saved);
  settle_cpu_products(e, ranks, device, saved);
  settle_attention(e, ranks, device, saved);
  if (e.shape.float8.is_on() && e.config.float8.automatic) decide_float8(e, ranks, device, saved);
  // Whole gradients first: they change what a step computes, kept codes only what it costs.
  if (leaves_weight_codes_open(e)) e.shape.parameters.keeps_float8_codes = false;
  if (leaves_reduction_open(e)) settle_by_memory(e, reduction_decision(e), ranks, device, saved);
  if (leaves_weight_codes_open(e)) settle_by_memory(e, weight_codes_decision(e), ranks, device, saved);
  require_equal_everywhere(*ranks.control, "decisions.json", e.decisions.hash());
}

}  // namespace ottava
