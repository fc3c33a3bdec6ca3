#include "apps/report/startup_report.h"

#include <fmt/ranges.h>

#include <initializer_list>
#include <set>
#include <utility>

#include "apps/devices/available_memory.h"
#include "apps/devices/too_large.h"
#include "apps/report/float8_remarks.h"
#include "apps/report/optimizer_text.h"
#include "core/beside_compute.h"
#include "core/cpu/isa.h"
#include "core/cuda/runtime.h"
#include "core/data/corpus.h"
#include "core/data/text_documents.h"
#include "core/device.h"
#include "core/log.h"
#include "core/metrics/step_line.h"
#include "core/ops/matmul/matmul.h"
#include "core/text/counted.h"
#include "core/text/listed.h"
#include "core/text/size_text.h"
#include "core/threads/parallel_for.h"
#include "parallel/comm/agree.h"
#include "parallel/pipeline/pipeline_text.h"

namespace ottava {
namespace {

std::string recompute_text(const std::vector<Recompute>& blocks) {
  const auto count = [&](Recompute r) { return std::ranges::count(blocks, r); };
  const auto elementwise = count(Recompute::elementwise), whole = count(Recompute::block),
             but_attention = count(Recompute::all_but_attention), all = std::ssize(blocks);
  const std::string of = fmt::format("of {}", counted(all, "block"));
  if (elementwise + whole + but_attention == 0) return "nothing is recomputed";
  if (elementwise == all) return "norms and activations are recomputed";
  if (but_attention == all) return fmt::format("all but attention is recomputed in {} {}", all, of);
  if (whole + count(Recompute::nothing) == all)
    return fmt::format("{} {} {} recomputed", whole, of, whole == 1 ? "is" : "are");
  if (elementwise + but_attention == all)
    return fmt::format("all but attention is recomputed in {} {}, norms and activations in the others",
                       but_attention, of);
  std::string text;  // ranks of a pipeline differ
  for (const auto& [what, some] : {std::pair("norms and activations", elementwise),
                                   std::pair("all but attention", but_attention), std::pair("all", whole)})
    if (some > 0) add_item(text, fmt::format("{} in {}{}", what, some, text.empty() ? " " + of : ""));
  return "recomputed are " + text;
}

// With one rank there is no sum between ranks, and sums over micro-batches are f32.
std::string gradient_sums_text(const Experiment& e) {
  const DType reduce = e.shape.parameters.reduce;
  const int data_ranks = e.mesh.size(MeshAxis::dp_replicate) * e.mesh.shards();
  if (reduce == DType::f32 || data_ranks == 1) return std::string(name_of(DType::f32));
  return fmt::format("{} between {}{}", name_of(reduce), counted(data_ranks, "data-parallel rank"),
                     e.mesh.size(MeshAxis::tp) > 1 ? ", f32 between tensor-parallel ranks" : "");
}

std::string in_blocks_text(const BlockOverlap& overlap) {
  std::vector<std::string_view> layers;
  for (const BlockLayer& layer : kBlockLayers)
    if (overlap.*layer.overlap == Overlap::blocks) layers.push_back(layer.name);
  return layers.empty() ? "" : fmt::format(" (in blocks: {})", fmt::join(layers, ", "));
}

// Gathers start ahead of their unit, and gradients are summed while the next unit's backward computes, as is
// a part of what a tensor-parallel layer needs; the norm comes last.
std::string overlap_text(const Experiment& e, const StepPlan& plan, const Communicator& world) {
  int64_t gathers = 0, sums = 0, tensor_parallel = 0, context_parallel = 0;
  for (const CommStats::Total& t : plan.traffic.totals()) {
    if (t.axis == "replica" || t.axis == "stage" || t.axis == "pp") continue;
    int64_t& kind = t.axis == "tp"                           ? tensor_parallel
                    : t.axis == "cp"                         ? context_parallel
                    : t.collective == Collective::all_gather ? gathers
                                                             : sums;
    kind += t.sent_bytes;
  }
  if (!world.overlaps()) return fmt::format("nothing overlaps with compute ({})", world.transport());
  const bool gathers_overlap = gathers > 0 && e.shape.parameters.prefetch > 0;
  std::string text = fmt::format("{} overlap with compute over {}",
                                 size_text(sums + (gathers_overlap ? gathers : 0)), world.transport());
  if (sums > 0)
    text += gathers_overlap ? " (gathers of the units ahead, sums of gradients)" : " (sums of gradients)";
  if (gathers > 0 && !gathers_overlap)
    text += fmt::format(", gathers {} are waited for (parallelism.fsdp_prefetch 0)", size_text(gathers));
  if (tensor_parallel > 0) {
    const int64_t beside = sent_beside_compute(plan.order, "tp");
    text += fmt::format(", tensor parallel {} beside products{}, {} is waited for", size_text(beside),
                        in_blocks_text(e.shape.model_options.overlap), size_text(tensor_parallel - beside));
  }
  if (context_parallel > 0) {
    const int64_t beside = sent_beside_compute(plan.order, "cp");
    text += fmt::format(", context parallel {} beside compute, {} is waited for", size_text(beside),
                        size_text(context_parallel - beside));
  }
  return text;
}

std::string device_text(Device device) {
  if (device.is_gpu()) return fmt::format("{} ({})", to_string(device), cuda::device_name(device.index));
  return fmt::format("cpu ({}, {})", matmul_backend_description(), counted(parallel_threads(), "thread"));
}

std::string categories_text(const MemoryPlan& plan) {
  return listed(plan.by_category(), [](const MemoryPlan::Row& row) {
    return fmt::format("{} {}", name_of(row.category), size_text(row.bytes));
  });
}

void warn_about_warmup(const Config& c) {
  const int64_t total = c.lr_scheduler.total_steps.value_or(c.training.steps);
  if (c.lr_scheduler.warmup_steps < total) return;
  log::warning(
      "lr_scheduler.warmup_steps {} cover the whole schedule of {}: the learning rate rises until the last "
      "step and never decays",
      c.lr_scheduler.warmup_steps, counted(total, "step"));
}

std::string snapshot_text(const Experiment& e, const ShardCoordinates& at) {
  const bool is_beside = e.compute_capability &&
                         e.config.checkpoint.async_mode == CheckpointConfig::Async::async_with_pinned_mem;
  return fmt::format("Checkpoints: a snapshot of {} in {}host memory, copied {}, written in the background",
                     size_text(snapshot_bytes(e, at)), is_beside ? "pinned " : "",
                     is_beside ? "beside the next step up to its update" : "between two steps");
}

void log_pipeline(const TrainingShape& s, const StepPlan& plan) {
  log::info("Pipeline: {}; rank 0 has {}; {} sent to other stages", describe(s.pipeline),
            describe_rank(s.pipeline, 0), size_text(plan.traffic.sum(Collective::send, "pp").sent_bytes));
  if (s.micro_batches < s.pipeline.shape.stages())
    log::warning(
        "{} on {} {} ranks idle for most of the step: raise training.local_batch_size or lower "
        "parallelism.pipeline_parallel_microbatch_size",
        counted(s.micro_batches, "micro-batch", "micro-batches"), counted(s.pipeline.shape.stages(), "stage"),
        s.micro_batches == 1 ? "leaves" : "leave");
}

void log_model(const Experiment& e) {
  const Config& c = e.config;
  const TrainingShape& s = e.shape;
  const LlamaConfig& m = s.model;
  log::info("Model {}: {} total parameters ({}, dim {}, {} of {} over {}, ffn {}, vocabulary {}{})",
            model_title(c.model), with_commas(parameter_count(m)), counted(m.layers, "layer"), m.dim,
            counted(m.heads, "head"), m.head_dim, counted(m.kv_heads, "key/value head"), m.ffn_dim,
            m.vocab_size, m.tied_embeddings ? ", tied" : "");
  for (const std::string& line : model_lines(c, e.model_values)) log::info("  {}", line);
  log::info("Precision: compute {}, masters f32, moments {}, gradient sums {}; {}",
            name_of(s.parameters.compute), name_of(s.parameters.optimizer_state), gradient_sums_text(e),
            recompute_text(s.model_options.recompute));
  if (const std::string optimizer = optimizer_text(e); !optimizer.empty())
    log::info("Optimizer: {}", optimizer);
}

void log_float8(const Experiment& e, const StepPlan& plan, Device device) {
  const TrainingShape& s = e.shape;
  if (s.float8_policy.decisions.empty()) return;
  log::info("FP8: {}", fp8::policy_summary(s.float8_policy));
  if (!s.float8.is_on())
    log::warning("FP8: no layer runs in FP8, everything trains in {}; the reasons are given above",
                 name_of(s.parameters.compute));
  for (const std::string& remark : float8_remarks(e, plan)) log::info("FP8: {}", remark);
  if (!device.is_gpu() && s.float8.is_on())
    log::info(
        "FP8: on a CPU, FP8 products are emulated by bf16 products of the same codes, which is exact but "
        "no faster");
}

// Stages of a pipeline differ, so that what is said of memory and compute is this rank's.
void log_memory(const Experiment& e, const StepPlan& plan, const RankGroups& ranks) {
  log::info("Memory plan: {} on {} at the fullest moment: {}", size_text(plan.memory.total_bytes()),
            e.shape.pipeline.is_on() ? fmt::format("rank {}", ranks.world->rank()) : "each rank",
            categories_text(plan.memory));
  if (saves_asynchronously(e.config.checkpoint)) log::info("{}", snapshot_text(e, ranks.coordinates));
}

void log_compute(const Experiment& e, const StepPlan& plan, const RankGroups& ranks) {
  const TrainingShape& s = e.shape;
  const double flops = plan.flops(Precision::fp32) + plan.flops(Precision::bf16) + plan.flops(Precision::fp8);
  log::info(
      "Compute: {:.3f} TFLOP on {} ({:.1f}% bf16, {:.1f}% fp32, {:.1f}% fp8); model FLOPs per token {:.4g}{}",
      flops / 1e12,
      s.pipeline.is_on() ? fmt::format("rank {} in each step", ranks.world->rank()) : "each rank and step",
      100 * plan.flops(Precision::bf16) / flops, 100 * plan.flops(Precision::fp32) / flops,
      100 * plan.flops(Precision::fp8) / flops, model_flops_per_token(s.model, s.sequence),
      s.block_causal ? "; attention is counted as one document, so that utilization is an upper limit" : "");
}

void log_traffic(const Experiment& e, const StepPlan& plan, const Communicator& world) {
  if (world.size() == 1) return;
  const CommStats& traffic = plan.traffic;
  const int64_t messages = traffic.sum(Collective::send).sent_bytes;
  log::info("Traffic: {} in {} sent by this rank in each step: gathers {}, reductions {}, sums {}{}; {}",
            size_text(traffic.sent_bytes()), counted(traffic.calls(), "call"),
            size_text(traffic.sum(Collective::all_gather).sent_bytes),
            size_text(traffic.sum(Collective::reduce_scatter).sent_bytes),
            size_text(traffic.sum(Collective::all_reduce).sent_bytes),
            messages > 0 ? ", messages " + size_text(messages) : "", overlap_text(e, plan, world));
}

}  // namespace

void log_startup_report(const Experiment& e, const StepPlan& plan, Device device, const RankGroups& ranks) {
  const Config& c = e.config;
  const TrainingShape& s = e.shape;
  log::info("Starting job: {}", c.job.description);
  for (const std::string& note : c.provenance.notes) log::info("{}", note);
  for (const std::string& warning : c.provenance.warnings) log::warning("{}", warning);
  log::info("Device: {}, {}: {}", device_text(device), counted(ranks.world->size(), "rank"),
            e.mesh.describe());
  if (const std::string why = cuda_unavailable_reason(); c.training.device == "auto" && !why.empty())
    log::info("  No GPU is used: {}", why);
  log_model(e);
  log_float8(e, plan, device);
  log_memory(e, plan, ranks);
  log_compute(e, plan, ranks);
  log_traffic(e, plan, *ranks.world);
  log::info(
      "Trainer is initialized with local batch size {}, global batch size {}, gradient accumulation steps "
      "{}, sequence length {}, total steps {} (warmup {})",
      c.training.local_batch_size, e.global_batch, s.micro_batches * s.batch / c.training.local_batch_size,
      s.sequence, c.training.steps, c.lr_scheduler.warmup_steps);
  if (s.pipeline.is_on()) log_pipeline(s, plan);
  warn_about_warmup(c);
}

namespace {

std::string conversations_text(const data::TokenLoader& loader) {
  std::string text = "; each line of JSON is a conversation, whole in its window";
  const data::SegmentCount known = loader.known();
  if (known.documents + known.too_long == 0) return text;
  return text + fmt::format(": {} fit, {} left out as longer than {}", with_commas(known.documents),
                            with_commas(known.too_long), counted(loader.options().seq_len + 1, "token"));
}

}  // namespace

std::string data_text(std::string_view name, const data::TokenLoader& loader) {
  const data::LoaderOptions& options = loader.options();
  const data::Corpus& corpus = loader.corpus();
  int64_t bytes = 0;
  std::set<data::Format> formats;
  for (const data::DataFile& file : corpus.files()) {
    bytes += file.bytes;
    formats.insert(file.format);
  }
  std::vector<std::string_view> names;
  for (data::Format format : formats) names.push_back(data::name_of(format));
  std::string text = fmt::format("{}: {}, {} of {}", name, counted(corpus.files().size(), "file"),
                                 size_text(bytes), fmt::join(names, ", "));
  if (const std::optional<int64_t> sequences = loader.samples_per_epoch())
    text += fmt::format(", {} {} of {} in each epoch", with_commas(*sequences),
                        *sequences == 1 ? "sequence" : "sequences", counted(options.seq_len, "token"));
  text += options.order == data::Order::shuffled ? ", shuffled" : ", in the order of the files";
  if (formats.contains(data::Format::text))
    text += fmt::format("; plain text becomes documents at {}, or without it, at blank lines, of at most {}",
                        data::kTextSeparator, size_text(corpus.sizes().max_text_bytes));
  if (options.encoder.chat) {
    text += conversations_text(loader);
  } else if (formats.contains(data::Format::json_lines))
    text += fmt::format("; each line of JSON is a document (\"{}\")", options.text_key);
  if (!options.encoder.chat && !std::ranges::all_of(formats, data::is_tokenized))
    text += fmt::format("; {}", data::marks_text(options.encoder));
  return text + fmt::format("; {}, {} ahead", counted(options.threads, "thread"),
                            counted(options.prefetch, "segment"));
}

namespace {

/// What takes most beside the model and its optimizer, and the keys that make it smaller.
struct LargePart {
  std::string name, keys;
  bool is_training = false;
};

// A batch of one sequence cannot be lowered.
std::string batch_keys(std::string_view section, int64_t local_batch, std::string_view remark = "") {
  return local_batch == 1 ? fmt::format("{}.seq_len", section)
                          : fmt::format("{0}.local_batch_size{1} or {0}.seq_len", section, remark);
}

LargePart largest_part(const Config& c, const MemoryPlan& plan) {
  const auto phase_bytes = [&](std::string_view name) {
    const auto phase = std::ranges::find(plan.phases, name, &MemoryPlan::Phase::name);
    return phase == plan.phases.end() ? 0 : phase->bytes;
  };
  int64_t of_samples = phase_bytes("sample");
  for (const PlannedAllocation& a : plan.persistent)
    if (a.name.ends_with(" of samples")) of_samples += a.bytes;
  const int64_t of_step = phase_bytes("train"), of_validation = phase_bytes("validate");
  if (of_samples > std::max(of_step, of_validation))
    return {"the run with its sample texts",
            "evaluation.max_new_tokens, or shorten or drop evaluation.prompts"};
  if (of_validation > of_step) return {"validation", batch_keys("validation", c.validation.local_batch_size)};
  return {
      "the step",
      batch_keys("training", c.training.local_batch_size, " (gradient accumulation keeps global_batch_size)"),
      true};
}

// Of these settings, the ones that are not so yet: "set A or B, ", or nothing.
std::string set_text(std::initializer_list<std::pair<bool, std::string_view>> settings) {
  std::vector<std::string_view> open;
  for (const auto& [is_open, setting] : settings)
    if (is_open) open.push_back(setting);
  return open.empty() ? "" : fmt::format("set {}, ", fmt::join(open, " or "));
}

std::string step_complaint(const Experiment& e, const MemoryPlan& plan, Device device, int64_t available) {
  const std::vector<MemoryPlan::Item> items = plan.largest(6);
  // The owner of a matrix works on all of it, however it is sharded.
  const bool has_muon =
      std::ranges::any_of(items, [](const MemoryPlan::Item& item) { return item.name.starts_with("muon "); });
  const LargePart part = largest_part(e.config, plan);
  const auto is_whole = [](Recompute r) { return r == Recompute::block; };
  const std::vector<Recompute>& recompute = e.shape.model_options.recompute;  // empty: nothing
  const bool recomputes_all = !recompute.empty() && std::ranges::all_of(recompute, is_whole);
  return fmt::format(
      "{}. Lower {}, {}{}or shard over more ranks", too_large_text(part.name, plan, device, available),
      part.keys,
      set_text({{part.is_training && !recomputes_all, "activation_checkpoint.mode: full"},
                {e.shape.parameters.optimizer_state != DType::bf16, "optimizer.state_dtype: bfloat16"}}),
      has_muon ? "leave the largest matrices, which Muon needs whole on one rank, to AdamW "
                 "(optimizer.param_groups with optimizer_name: AdamW), "
               : "");
}

}  // namespace

void require_memory(const Experiment& e, const MemoryPlan& plan, Device device, Communicator& control,
                    std::optional<int64_t> snapshot_bytes) {
  const bool on_host = !device.is_gpu();
  const int64_t available = memory_for_rank(device, control),
                host =
                    snapshot_bytes && !on_host ? memory_for_rank({DeviceType::cpu, 0}, control) : available,
                snapshot = snapshot_bytes.value_or(0);
  std::string complaint;
  if (plan.total_bytes() > available) {
    complaint = step_complaint(e, plan, device, available);
  } else if (snapshot + (on_host ? plan.total_bytes() : 0) > host) {
    complaint = fmt::format(
        "asynchronous checkpoints need {} of host memory for a snapshot{}, but only {} are free for this "
        "rank: {}or shard over more ranks",
        size_text(snapshot), on_host ? " beside the step's " + size_text(plan.total_bytes()) : "",
        size_text(host),
        set_text({{true, "checkpoint.async_mode: disabled"},
                  {e.shape.parameters.optimizer_state != DType::bf16, "optimizer.state_dtype: bfloat16"}}));
  }
  refuse_together<MemoryError>(control, "memory", complaint);
}

}  // namespace ottava
