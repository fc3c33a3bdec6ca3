#include "apps/decide/attention_choice.h"

#include <algorithm>

#include "apps/config/resolved_float8.h"
#include "apps/decide/memory_need.h"
#include "apps/decide/workbench.h"
#include "apps/step/step_plan.h"
#include "core/contains.h"
#include "core/cuda/fused_attention.h"
#include "core/cuda/runtime.h"
#include "core/log.h"
#include "core/text/gib.h"
#include "core/text/listed.h"
#include "models/llama/recompute.h"
#include "parallel/comm/agree.h"

namespace ottava {
namespace {

constexpr const char *kBackend = "attention.backend", *kDeterministic = "attention.deterministic",
                     *kLibrary = "attention.library";

using Backend = AttentionConfig::Backend;
using Backward = cuda::FusedAttention::Backward;

/// cuDNN for this experiment, or the reason why it cannot be used.
struct Candidate {
  Backward backward = Backward::deterministic;
  std::shared_ptr<cuda::FusedAttention> fused = {};
  std::string why_not = {};
  const char* name() const {
    return backward == Backward::deterministic ? "cudnn" : "cudnn, not deterministic";
  }
};

/// Of a step, forward and backward. With cuDNN it is planned.
std::vector<RecordedOperation> attention_of(const Experiment& e, Device device,
                                            const std::shared_ptr<cuda::FusedAttention>& fused) {
  TrainingShape shape = e.shape;
  shape.model_options.fused_attention = fused;
  StepPlan plan = record_first_rank(shape, device, e.mesh);
  std::erase_if(plan.operations, [](const RecordedOperation& o) { return !o.op.starts_with("attention"); });
  return std::move(plan.operations);
}

Candidate find_cudnn(const Experiment& e, Device device, Backward backward) {
  Candidate out{.backward = backward, .why_not = objection_to_cudnn(e)};
  if (out.why_not.empty() && !cuda::cudnn_is_built())
    out.why_not =
        "this program was built without cuDNN's attention (which needs cudnn.h and cudnn_frontend.h)";
  if (!out.why_not.empty()) return out;
  try {
    auto fused = std::make_shared<cuda::FusedAttention>(device.index, backward);
    attention_of(e, device, fused);
    out.fused = std::move(fused);
  } catch (const DeviceError& error) {
    out.why_not = error.what();
  }
  return out;
}

/// All choices that the configuration allows, the preferred one first.
std::vector<Candidate> find_candidates(const Experiment& e, Device device) {
  std::vector<Candidate> out;
  if (!e.config.attention.deterministic) out.push_back(find_cudnn(e, device, Backward::free));
  if (e.config.attention.deterministic || e.config.attention.backend == Backend::automatic)
    out.push_back(find_cudnn(e, device, Backward::deterministic));
  return out;
}

/// Removes choices that some rank lacks, and those with which the step would not fit some rank's memory even
/// if everything else that is open were decided for less memory. Every rank makes the call.
void judge(Candidate& c, const Experiment& e, RankGroups& ranks, Device device) {
  double with = c.fused ? 1 : 0;
  reduce_on_host(*ranks.control, view_of(&with, {1}), "attention");
  if (with < ranks.control->size()) {
    if (c.fused) c.why_not = "another rank cannot use it";
    c.fused = nullptr;
    return;
  }
  TrainingShape shape = e.shape;
  shape.model_options.fused_attention = c.fused;
  if (leaves_reduction_open(e)) shape.parameters.reduce_every_micro_batch = true;
  if (leaves_recompute_open(e))
    shape.model_options.recompute = recompute_choices(shape.model.layers).back().blocks;
  if (leaves_weight_codes_open(e)) shape.parameters.keeps_float8_codes = false;
  const MemoryNeed need = tightest(memory_needs(e, shape, ranks, device));
  if (need.bytes <= need.available) return;
  c.why_not = fmt::format("with its workspace the step takes {:.1f} GiB, of {:.1f} free", gib(need.bytes),
                          gib(need.available));
  c.fused = nullptr;
}

/// Best milliseconds of forward and backward of one layer.
double measure(const Experiment& e, Device device, const std::shared_ptr<cuda::FusedAttention>& fused) {
  Stream stream = Stream::cuda(device.index);
  Workbench tensors(device);
  std::vector<std::function<void(Stream&)>> calls;
  for (const RecordedOperation& o : attention_of(e, device, fused))
    calls.push_back(prepare(o, tensors, e.shape.model.vocab_size));
  return best_milliseconds(stream, [&] {
    for (const auto& call : calls) call(stream);
  });
}

/// Rank 0's entries for attention.backend: auto.
std::vector<Decisions::Entry> choose(const Experiment& e, Device device,
                                     const std::vector<Candidate>& candidates, const Decisions& saved) {
  if (const Decisions::Entry* before = saved.find(kBackend)) {
    std::vector<Decisions::Entry> out{*before};
    const Decisions::Entry* how = saved.find(kDeterministic);
    if (how && candidates.size() > 1) out.push_back(*how);
    return out;
  }
  const bool has_any = std::ranges::any_of(candidates, [](const Candidate& c) { return c.fused != nullptr; });
  const double ours = has_any ? measure(e, device, nullptr) : 0;
  std::string times = fmt::format("forward and backward of a layer: flash {:.3f} ms", ours), objections;
  const Candidate* best = nullptr;
  double fastest = ours;
  for (const Candidate& c : candidates) {
    if (!c.fused) {
      if (!contains_text(objections, c.why_not)) add_item(objections, c.why_not, "; ");
      continue;
    }
    double theirs = 0;
    try {
      theirs = measure(e, device, c.fused);
    } catch (const Error& error) {  // it plans, and cannot run or be measured here
      add_item(objections, error.what(), "; ");
      continue;
    }
    times += fmt::format(", {} {:.3f} ms", c.name(), theirs);
    if (theirs < fastest) best = &c, fastest = theirs;
  }
  if (!has_any) return {{kBackend, "flash", objections}};
  std::vector<Decisions::Entry> out{
      {kBackend, best ? "cudnn" : "flash", times + (objections.empty() ? "" : "; " + objections)}};
  if (best && candidates.size() > 1) {
    const bool repeats = best->backward == Backward::deterministic;
    out.push_back({kDeterministic, repeats ? "true" : "false",
                   repeats ? "no slower" : "faster; the same step need not give the same bits again"});
  }
  return out;
}

std::string complaint_about(const std::string& backend, bool is_saved, const Candidate& candidate) {
  if (backend != "cudnn" && backend != "flash")
    return fmt::format("the checkpoint has {} = '{}', expected flash or cudnn: start with --redecide",
                       kBackend, backend);
  if (backend == "flash" || candidate.fused) return {};
  if (is_saved) {
    return fmt::format(
        "the checkpoint's run used {} = cudnn, which is not possible here: {}. Start with --redecide; "
        "results may then differ in the last bits",
        kBackend, candidate.why_not);
  }
  return fmt::format("backend is cudnn, but {}: set it to auto or flash", candidate.why_not);
}

/// The same bits hold for one version on one GPU model only.
std::string complaint_about_library(const Decisions& saved, const std::string& library) {
  const Decisions::Entry* before = saved.find(kLibrary);
  if (!before || before->value == library) return {};
  return fmt::format(
      "the checkpoint's run computed attention with {}, but here is {}: start with --redecide; results may "
      "then differ in the last bits",
      before->value, library);
}

}  // namespace

std::string objection_to_cudnn(const Experiment& e) {
  const TrainingShape& s = e.shape;
  if (s.parameters.compute != DType::bf16)
    return fmt::format("cuDNN's attention needs bfloat16, but training.mixed_precision_param is {}",
                       name_of(s.parameters.compute));
  if (s.block_causal) return "cuDNN's attention does not support model.attn_mask_type block_causal";
  return {};
}

void require_possible_attention(const Experiment& e, Device device, Communicator* ranks) {
  if (e.config.attention.backend != AttentionConfig::Backend::cudnn) return;
  const std::string objection =
      device.is_gpu() ? objection_to_cudnn(e) : fmt::format("the device is {}", to_string(device));
  if (objection.empty()) return;
  if (ranks) meet_before_refusing(*ranks);
  fail<ConfigError>("attention", "backend is cudnn, but {}: set it to auto or flash", objection);
}

void settle_attention(Experiment& e, RankGroups& ranks, Device device, const Decisions& saved) {
  const Backend wish = e.config.attention.backend;
  if (!e.config.attention.deterministic && (!device.is_gpu() || !e.config.attention.may_use_cudnn()))
    log::info(
        "attention.deterministic: false has no effect: only cuDNN has an attention that is not "
        "deterministic");
  require_possible_attention(e, device, ranks.control.get());
  if (!device.is_gpu()) return;
  if (!e.config.attention.may_use_cudnn()) return log::info("Attention: flash (attention.backend is flash)");
  std::vector<Candidate> candidates = find_candidates(e, device);
  Decisions mine{.entries = {{kBackend, "cudnn", "attention.backend is cudnn"}}};
  if (wish == Backend::automatic) {
    for (Candidate& c : candidates) judge(c, e, ranks, device);
    if (ranks.is_first()) mine.entries = choose(e, device, candidates, saved);
    mine = of_first_rank(mine, *ranks.control);
    std::ranges::copy(mine.entries, std::back_inserter(e.decisions.entries));
  }
  const Decisions::Entry& entry = mine.entries.front();
  const Decisions::Entry* how = mine.find(kDeterministic);
  const Backward backward =
      how && how->value == "true" ? Backward::deterministic : candidates.front().backward;
  const Candidate& candidate = *std::ranges::find(candidates, backward, &Candidate::backward);
  refuse_together(
      *ranks.control, "attention",
      complaint_about(entry.value, wish == Backend::automatic && saved.find(kBackend), candidate));
  log::info("Attention: {} ({})", entry.value == "cudnn" ? candidate.name() : entry.value, entry.reason);
  if (entry.value != "cudnn") return;
  const std::string library = cuda::cudnn_library() + " on " + cuda::device_name(device.index);
  refuse_together(*ranks.control, "attention", complaint_about_library(saved, library));
  e.decisions.entries.push_back({kLibrary, library, "its kernels' sums are this version's on this GPU"});
  e.shape.model_options.fused_attention = candidate.fused;
}

}  // namespace ottava
