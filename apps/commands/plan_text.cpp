#include "apps/commands/plan_text.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <map>
#include <span>

#include "apps/decide/attention_choice.h"
#include "apps/report/throughput.h"
#include "core/metrics/step_line.h"
#include "core/text/counted.h"
#include "core/text/gib.h"
#include "core/text/listed.h"
#include "models/llama/attention_layer.h"
#include "parallel/pipeline/pipeline_text.h"
#include "parallel/pipeline/simulated_pipeline.h"

namespace ottava {
namespace {

using fmt::print;

std::string change_text(double before, double after) {
  return fmt::format("{:+.1f}%", 100 * (after / before - 1));
}

std::string fit_text(double gib, double limit) {
  return gib <= limit ? fmt::format("fits, {:.1f} GiB to spare", limit - gib)
                      : fmt::format("{:.1f} GiB too much", gib - limit);
}

/// Behind a column of numbers, which keeps its width.
std::string call_noun(int64_t count) { return count == 1 ? "call" : "calls"; }

void print_move(const MemoryMove& move, const RecordedLayout& from, double limit, std::ostream& out) {
  const RecordedLayout& after = move.after;
  const std::string keys = listed(move.keys, [&](const auto& one) {
    const bool is_automatic = one.first == "activation_checkpoint.mode" && one.second == "auto";
    return fmt::format("{}: {}{}", one.first, one.second,
                       is_automatic ? fmt::format(" ({})", after.automatic_recompute()) : "");
  });
  const double ranks = static_cast<double>(after.layout.ranks()) / from.layout.ranks();
  print(out, "  {:+.1f} GiB: {}; FLOPs {}", after.gib_with_nccl() - from.gib_with_nccl(), keys,
        change_text(from.flops(), after.flops()));
  if (after.time)
    print(out, ", {} a step ({}{})", duration_text(after.time->seconds),
          change_text(from.time->seconds, after.time->seconds),
          ranks > 1 ? fmt::format(" for {:.0f} times the tokens", ranks) : "");
  out << "; " << fit_text(after.gib_with_nccl(), limit) << '\n';
}

/// Of parts: the smallest would be 0.000 GiB.
std::string part_text(int64_t bytes) {
  constexpr int64_t kMiB = 1 << 20;
  return bytes < 10 * kMiB ? fmt::format("{:.3f} MiB", static_cast<double>(bytes) / kMiB)
                           : fmt::format("{:.3f} GiB", gib(bytes));
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds >= 0.1) return fmt::format("{:.3f} s", seconds);
  return seconds >= 1e-4 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.1f} us", seconds * 1e6);
}

void print_pipeline(const PipelineLayout& pipeline, const RecordedLayout& recorded, std::ostream& out) {
  if (!pipeline.is_on()) return;
  print(out, "Pipeline: {}\n", describe(pipeline));
  for (int rank = 0; rank < pipeline.shape.ranks; ++rank)
    print(out, "  {}: {:>8.3f} GiB, {}\n", rank, gib(recorded.bytes_of_roles[rank]),
          describe_rank(pipeline, rank));
  out << picture_of(make_schedule(pipeline.shape))
      << "  (digits: forward of a micro-batch; small letters: gradient of its input, capitals: of weights; "
         "dots: idle)\n";
}

namespace {

int64_t key_heads_of_rank(const Experiment& e) {
  return std::max<int64_t>(e.shape.model.kv_heads / e.mesh.size(MeshAxis::tp), 1);
}

}  // namespace

void print_context_parallel(const Experiment& e, std::ostream& out) {
  const int cp = e.mesh.size(MeshAxis::cp), tp = e.mesh.size(MeshAxis::tp);
  if (cp == 1) return;
  const int64_t heads = key_heads_of_rank(e), at_once = AttentionLayer::heads_at_once(heads);
  print(out, "Context parallel: {} share each sequence; keys and values of {} of {} at a time",
        counted(cp, "rank"), at_once, counted(heads, "key/value head"));
  if (at_once < heads) {
    out << ", those of the next ones travel beside attention\n";
  } else {
    print(
        out,
        ": in forward nothing travels beside attention, in backward gathers travel beside wo's products{}\n",
        tp > 1 ? "; with fewer tensor-parallel ranks each has several heads" : "");
  }
  if (e.compute_capability && e.config.attention.may_use_cudnn() && objection_to_cudnn(e).empty())
    print(out,
          "  cuDNN's attention takes {:.3f} GiB more, which this plan is without: its bf16 gradients of "
          "those\n",
          gib(bytes_of_cudnn_gradients(e)));
}

int64_t bytes_of_cudnn_gradients(const Experiment& e) {
  if (e.mesh.size(MeshAxis::cp) == 1) return 0;
  const LlamaConfig& m = e.shape.model;
  return 2 * e.shape.batch * e.shape.sequence * AttentionLayer::heads_at_once(key_heads_of_rank(e)) *
         m.head_dim * size_of(DType::bf16);
}

void print_memory(const MemoryPlan& memory, std::ostream& out) {
  print(out, "Memory per rank: {:.3f} GiB (persistent {:.3f})\n", gib(memory.total_bytes()),
        gib(memory.persistent_bytes));
  for (const MemoryPlan::Row& row : memory.by_category())
    print(out, "  {:<16} {:>14}\n", name_of(row.category), part_text(row.bytes));
  print(out, "  largest: {}\n", listed(memory.largest(5), [](const MemoryPlan::Item& item) {
          return fmt::format("{} {}", item.text(), part_text(item.bytes));
        }));
  for (const MemoryPlan::Phase& phase : memory.phases) {
    print(out, "  phase {:<10} {:>14} packed, {} alive at most\n", phase.name, part_text(phase.bytes),
          part_text(phase.lower_bound));
  }
}

void print_nccl(const RecordedLayout& recorded, std::ostream& out) {
  const NcclMemory& nccl = recorded.nccl;
  if (nccl.bytes() == 0) return;
  print(out, "Besides, NCCL: {:.3f} GiB, assumed and not measured on several GPUs: {} of {:.3f} GiB",
        gib(nccl.bytes()), counted(nccl.communicators, "communicator"), gib(nccl.bytes_of_communicator));
  if (nccl.neighbours > 0)
    print(out, " and messages with {} of {:.3f} GiB", counted(nccl.neighbours, "neighbour"),
          gib(nccl.bytes_of_neighbour));
  if (nccl.nvls_bytes > 0)
    print(out, ", and {:.3f} GiB of NVLS, which NCCL_NVLS_ENABLE=0 does without", gib(nccl.nvls_bytes));
  out << " (NVIDIA/nccl#964, #1685); comm.sm_budget or NCCL_MAX_NCHANNELS lower it\n";
}

void print_verdict(const RecordedLayout& planned, const MemoryLimit& limit, const LayoutRecorder& recorder,
                   std::ostream& out) {
  if (planned.gib_with_nccl() <= limit.gib) {
    const double needed = planned.gib_with_nccl();
    print(out, "Fits: {:.{}f} of {:.1f} GiB ({}), {:.1f} GiB to spare\n", needed, needed < 0.1 ? 3 : 1,
          limit.gib, limit.of, limit.gib - needed);
    return;
  }
  print(out, "DOES NOT FIT: {:.1f} GiB are needed and {:.1f} are there ({}): {:.1f} GiB too much\n",
        planned.gib_with_nccl(), limit.gib, limit.of, planned.gib_with_nccl() - limit.gib);
  const std::vector<MemoryMove> moves = memory_moves(planned, limit.gib, recorder);
  if (moves.empty()) {
    out << "  no change of recomputation, moments, batch or layout takes less\n";
    return;
  }
  out << "What takes less, by what it costs for a GiB (each recorded):\n";
  for (const MemoryMove& move : moves) print_move(move, planned, limit.gib, out);
  const auto fits = [&](const MemoryMove& move) { return move.after.gib_with_nccl() <= limit.gib; };
  if (std::ranges::none_of(moves, fits)) {
    const MemoryMove& closest = *std::ranges::min_element(
        moves, {}, [](const MemoryMove& move) { return move.after.gib_with_nccl(); });
    print(out, "  none of them fits; the closest lacks {:.1f} GiB\n",
          closest.after.gib_with_nccl() - limit.gib);
  }
}

void print_compute(const StepPlan& plan, std::ostream& out) {
  out << "Compute per rank and step (FLOPs as computed):\n";
  for (Precision precision : {Precision::bf16, Precision::fp8, Precision::fp32}) {
    print(out, "  {:<6} {:>14.4f} TFLOP\n", name_of(precision), plan.flops(precision) / 1e12);
  }
  std::map<std::string, double> by_label;
  for (const CostRecorder::Total& t : plan.costs) by_label[t.label] += t.flops;
  for (const auto& [label, flops] : by_label) {
    if (flops > 0) print(out, "    {:<26} {:>14.4f} TFLOP\n", label, flops / 1e12);
  }
}

void print_traffic(const CommStats& stats, std::ostream& out) {
  if (stats.calls() == 0) return;
  print(out, "Traffic per rank and step: {:.3f} GiB sent in {}\n", gib(stats.sent_bytes()),
        counted(stats.calls(), "call"));
  std::map<std::pair<std::string, std::string>, CommStats::Total> sums;
  for (const CommStats::Total& t : stats.totals()) {
    CommStats::Total& sum = sums[{t.axis, std::string(name_of(t.collective))}];
    sum.calls += t.calls;
    sum.sent_bytes += t.sent_bytes;
  }
  for (const auto& [key, sum] : sums) {
    print(out, "  {:<14} {:<16} {:>8} {:<5} {:>16} sent\n", key.first, key.second, sum.calls,
          call_noun(sum.calls), part_text(sum.sent_bytes));
  }
}

namespace {

void print_rates(const RecordedLayout& recorded, const DeviceTable& d, const Experiment& e,
                 std::ostream& out) {
  const StepTime& time = *recorded.time;
  const Throughput rates =
      throughput(recorded.mean_flops,
                 {.fp32 = d.fp32_tflops * 1e12,
                  .bf16 = d.bf16_tflops * 1e12,
                  .fp8 = (d.fp8_tflops > 0 ? d.fp8_tflops : d.bf16_tflops) * 1e12},
                 {.seconds = time.seconds,
                  .tokens = static_cast<double>(e.tokens_per_step()),
                  .ranks = e.mesh.world_size(),
                  .model_flops_per_token = model_flops_per_token(e.shape.model, e.shape.sequence)});
  print(out,
        "Time per step: {} ({} to {}; {}, allow for {:.0f}%); {} tokens/s per rank, mfu {}, util {:.1f}%\n",
        duration_text(time.seconds), duration_text(time.low()), duration_text(time.high()), d.id,
        d.error_percent, rate_text(rates.tokens_per_second), mfu_text(rates.mfu_percent, 1),
        rates.utilization_percent);
  if (time.idle_share > 0)
    print(out,
          "  ranks of the pipeline compute nothing in {:.1f}% of it; this is the one that computes longest\n",
          100 * time.idle_share);
}

void print_where_time_goes(const StepTime& time, std::ostream& out) {
  print(out, "  compute        {:>12}\n", duration_text(time.compute));
  for (const auto& [name, part] : time.classes)
    print(out, "    {:<26} {:>10} {:>8} {}\n", name, duration_text(part.seconds), part.calls,
          call_noun(part.calls));
  if (time.transfers <= 0) return;
  print(out, "  between ranks  {:>12}, of which compute waits for {}\n", duration_text(time.transfers),
        duration_text(time.exposed));
  // Calls that travel together count once.
  for (const auto& [name, part] : time.axes)
    print(out, "    {:<26} {:>10} {:>8} {} {} waited for\n", name, duration_text(part.seconds), part.calls,
          part.calls == 1 ? "transfer, " : "transfers,", duration_text(part.exposed));
}

void print_longest_operations(const StepPlan& plan, const Machine& machine, std::ostream& out) {
  constexpr size_t kShown = 6;
  out << "  longest operations:\n";
  const std::vector<OperationForecast> longest = predict_operations(plan, machine);
  for (const auto& [operation, one] : std::span(longest).first(std::min(kShown, longest.size()))) {
    const double all = one.seconds * operation->calls;
    print(out, "    {:<32} {:>6} x {:>10} = {:>10}, {:>6.1f} TFLOP/s, {:>4.0f} GB/s\n",
          operation->op + (operation->variant.empty() ? "" : " " + operation->variant), operation->calls,
          duration_text(one.seconds), duration_text(all), operation->flops / one.seconds / 1e12,
          operation->bytes / one.seconds / 1e9);
  }
}

// What the times are made of, and what they leave out.
void print_sources(const StepTime& time, const Machine& machine, int ranks, std::ostream& out) {
  const DeviceTable& d = machine.device;
  print(out, "  from: {:.0f}% measured, {:.0f}% between measured ones, {:.0f}% by the table {}",
        100 * time.by_source[0] / time.compute, 100 * time.by_source[1] / time.compute,
        100 * time.by_source[2] / time.compute, d.id);
  if (d.is_gpu()) print(out, ", attention by {}", machine.has_cudnn_attention ? "cuDNN" : "our kernels");
  if (ranks > machine.ranks_per_node)
    print(out, "; {} a machine, network {}", counted(machine.ranks_per_node, "rank"), machine.network.id);
  print(out, "\n  error: {}\n", d.sources.find("error_percent")->second);
  if (time.transfers > 0 && d.is_gpu())
    out << "  between ranks: by the figures of device and network; this program has not run on several "
           "GPUs\n";
  out << "  not in it: stragglers, throttling, reading data, saving\n";
}

}  // namespace

void print_time(const RecordedLayout& recorded, const Machine& machine, const Experiment& e,
                std::ostream& out) {
  const StepTime& time = *recorded.time;
  print_rates(recorded, machine.device, e, out);
  print_where_time_goes(time, out);
  print_longest_operations(recorded.plan, machine, out);
  print_sources(time, machine, e.mesh.world_size(), out);
}

void print_float8_gather(const RecordedLayout& planned, const Config& config, const LayoutRecorder& recorder,
                         std::ostream& out) {
  using KeepCodes = Float8Config::KeepCodes;
  if (planned.layout.float8.empty() || planned.layout.shards() == 1) return;
  struct Variant {
    bool gathers_float8;
    KeepCodes keep;
  };
  auto recorded = [&](Variant v) {
    Layout layout = planned.layout;
    layout.float8_gather = v.gathers_float8;
    Config changed = config;
    changed.float8.keep_weight_codes = v.keep;
    return recorder.with(changed).record(layout);
  };
  const KeepCodes keep = config.float8.keep_weight_codes;
  const RecordedLayout with = recorded({.gathers_float8 = true, .keep = keep});
  auto line = [&](std::string_view name, const RecordedLayout& l) {
    const auto sent = [](const RecordedLayout& r) { return gib(r.plan.traffic.sent_bytes()); };
    print(out, "  {:<36} {:>9.3f} GiB sent, {:.3f} GiB of memory", name, sent(l), l.gib());
    if (l.time) print(out, ", {} a step", duration_text(l.time->seconds));
    if (&l != &with) {
      print(out, "; saved by it: {:.3f} GiB sent ({:.0f}%), {:+.3f} GiB", sent(l) - sent(with),
            100 * (1 - sent(with) / sent(l)), l.gib() - with.gib());
      if (l.time) print(out, ", {:.1f}% of the time", 100 * (1 - with.time->seconds / l.time->seconds));
    }
    out << '\n';
  };
  print(out, "FP8 all-gather (quantize.linear.float8.enable_fsdp_float8_all_gather, {}):\n",
        planned.layout.float8_gather ? "on" : "off");
  line("with it", with);
  if (keep != KeepCodes::no)
    line("without, codes kept through the step", recorded({.gathers_float8 = false, .keep = KeepCodes::yes}));
  if (keep != KeepCodes::yes)
    line("without, gathered again for backward", recorded({.gathers_float8 = false, .keep = KeepCodes::no}));
}

namespace {

void print_none_fits(const SearchResult& result, const MemoryLimit& limit, const Config& config,
                     std::ostream& out) {
  out << "NONE FITS";
  if (result.closest)
    print(out, "; the closest takes {:.1f} GiB, {:.1f} too much: {}\n  {}", result.closest->gib_with_nccl(),
          result.closest->gib_with_nccl() - limit.gib,
          describe(result.closest->layout, result.closest->automatic_recompute()),
          options_text(keys_of(result.closest->layout)));
  print(out, "\n  what helps: more ranks, shorter sequences, {}a device with more memory{}\n",
        config.optimizer.state_dtype == DType::bf16 ? "" : "optimizer.state_dtype: bfloat16, ",
        config.parallelism.pipeline_parallel_degree > 1
            ? ""
            : ", or a pipeline: --fix parallelism.pipeline_parallel_degree=N");
}

// The fastest layouts as a table, the first one's time in each line as what it is compared with.
void print_best(const SearchResult& result, int64_t tokens_per_step, std::ostream& out) {
  print(out, "{:>3} {:>10} {:>9} {:>10} {:>8} {:>9}  layout; why it is not the first\n", "", "a step",
        "than 1", "tok/s/rank", "GiB", "exposed");
  const double first = result.best[0].time->seconds;
  for (size_t i = 0; i < result.best.size(); ++i) {
    const RecordedLayout& l = result.best[i];
    const StepTime& t = *l.time;
    print(out, "{:>3} {:>10} {:>8.1f}% {:>10} {:>8.1f} {:>8.1f}%  {}{}{}\n", i + 1, duration_text(t.seconds),
          100 * (t.seconds / first - 1), rate_text(tokens_per_step / t.seconds / l.layout.ranks()),
          l.gib_with_nccl(), 100 * t.exposed / t.seconds, describe(l.layout, l.automatic_recompute()),
          result.reasons[i].empty() ? "" : "; ", result.reasons[i]);
  }
}

}  // namespace

void print_search(const SearchResult& result, const MemoryLimit& limit, const Machine& machine,
                  const Experiment& e, std::ostream& out) {
  print(out, "{} of {}, {} estimated, {} recorded in full; each may take {:.1f} GiB ({})\n",
        counted(result.layouts, "layout"), counted(e.mesh.world_size(), "rank"), result.estimated,
        result.recorded, limit.gib, limit.of);
  if (result.best.empty()) return print_none_fits(result, limit, e.config, out);
  print_best(result, e.tokens_per_step(), out);
  if (std::ranges::any_of(result.best, [](const RecordedLayout& l) { return l.nccl.bytes() > 0; }))
    out << "GiB are with what NCCL takes besides, assumed and not measured on several GPUs\n";
  if (std::ranges::any_of(result.best, [](const RecordedLayout& l) { return l.snapshot > 0; }))
    out << "GiB are with the snapshot of asynchronous checkpoints\n";
  const StepTime& first = *result.best[0].time;
  print(out,
        "Times are by {}{}: allow for an error of {:.0f}%, less in ratios of layouts of one model; bound by "
        "{}\n",
        machine.device.id,
        first.transfers > 0 && machine.device.is_gpu() ? " (nothing between GPUs has been measured)" : "",
        100 * first.error, first.bound_by());
  const double near = first.error * first.seconds;
  if (result.best.size() > 1 && result.best.back().time->seconds - first.seconds < near)
    out << "All of them are within that error of the first: try two or three\n";
  out << "Of pipelines the file's was tried, and what --fix parallelism.pipeline_parallel_degree=N names; "
         "between machines others of up to 16 ranks too, without dp_replicate and of at most 1,024 "
         "micro-batches x layers\n";
  out << "The first:\n  " << options_text(keys_of(result.best[0].layout)) << '\n';
  for (const Decisions::Entry& entry : result.best[0].decisions)
    print(out, "  decided as by a run: {} = {} ({})\n", entry.name, entry.value, entry.reason);
}

}  // namespace ottava
