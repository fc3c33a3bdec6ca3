#include "apps/predict/memory_moves.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <utility>

#include "apps/predict/decided_step.h"
#include "apps/predict/recompute_modes.h"
#include "core/contains.h"
#include "core/error.h"

namespace ottava {
namespace {

using Mode = ActivationCheckpointConfig::Mode;

/// The layout with one thing changed, or nothing where that is so already.
using Change = std::optional<Layout> (*)(Layout);

std::optional<Layout> recompute_as_needed(Layout l) {
  if (l.recompute.mode == Mode::automatic) return {};
  l.recompute = kModeAuto;
  return l;
}
std::optional<Layout> recompute_cheap(Layout l) {
  if (l.recompute.mode != Mode::none) return {};
  l.recompute = kModeOp;
  return l;
}
std::optional<Layout> recompute_all_but_attention(Layout l) {
  if (l.recompute.mode == Mode::full || l.recompute.mode == Mode::automatic) return {};
  if (l.recompute.mode == Mode::selective && l.recompute.all_but_attention()) return {};
  l.recompute = kModeAllButAttention;
  return l;
}
std::optional<Layout> recompute_all(Layout l) {
  if (l.recompute.mode == Mode::full || l.recompute.mode == Mode::automatic) return {};
  l.recompute = kModeFull;
  return l;
}
std::optional<Layout> halve_moments(Layout l) {
  if (l.moments == DType::bf16) return {};
  l.moments = DType::bf16;
  return l;
}
std::optional<Layout> halve_batch(Layout l) {
  if (l.local_batch % 2 != 0) return {};
  l.local_batch /= 2;
  return l;
}
std::optional<Layout> one_sequence(Layout l) {
  if (l.local_batch <= 2) return {};
  l.local_batch = 1;
  return l;
}
std::optional<Layout> reduce_often(Layout l) {
  using Reduce = ParallelismConfig::Reduce;
  if (l.reduce == Reduce::every_microbatch || l.micro_batches() == 1 || l.shards() == 1) return {};
  l.reduce = Reduce::every_microbatch;
  return l;
}
std::optional<Layout> reshard_always(Layout l) {
  using Reshard = ParallelismConfig::Reshard;
  if (l.reshard != Reshard::never || l.shards() == 1 || l.pp > 1) return {};
  l.reshard = Reshard::always;
  return l;
}
std::optional<Layout> shard_replicas(Layout l) {
  if (l.dp_replicate == 1) return {};
  l.dp_shard *= l.dp_replicate;
  l.dp_replicate = 1;
  return l;
}
std::optional<Layout> wider_tp(Layout l) {
  if (l.dp_shard % 2 != 0) return {};
  l.tp *= 2;
  l.dp_shard /= 2;  // and twice the micro-batches, whose gradients need not stay whole
  if (l.dp_shard > 1) l.reduce = ParallelismConfig::Reduce::every_microbatch;
  return l;
}
// The same shards, and half the tokens of a sequence.
std::optional<Layout> wider_cp(Layout l) {
  if (l.dp_shard % 2 != 0 || l.local_batch > 1) return {};
  l.cp *= 2;
  l.dp_shard /= 2;
  return l;
}
constexpr Change kChanges[] = {recompute_as_needed, recompute_cheap, recompute_all_but_attention,
                               recompute_all,       halve_moments,   halve_batch,
                               one_sequence,        reduce_often,    reshard_always,
                               shard_replicas,      wider_tp,        wider_cp};
constexpr std::array kRecomputations{recompute_cheap, recompute_all_but_attention, recompute_all};

std::optional<RecordedLayout> try_record(const Layout& layout, const LayoutRecorder& recorder) {
  try {
    return recorder.record(layout);
  } catch (const ConfigError&) {  // heads or tokens that do not divide: not to be had
    return {};
  }
}

using Fits = std::function<bool(const RecordedLayout&)>;

struct SingleMove {
  Change change;
  MemoryMove move;
};

/// Whether mode auto came to what the other one does in every block.
bool is_the_same(const RecordedLayout& a, const RecordedLayout& b) {
  Layout layout = a.layout;
  layout.recompute = b.layout.recompute;
  return layout == b.layout && a.bytes_of_roles == b.bytes_of_roles && a.flops() == b.flops();
}

/// Each change by itself, if it takes less; those that cost least for a GiB first.
std::vector<SingleMove> single_moves(const RecordedLayout& from, const LayoutRecorder& recorder) {
  std::vector<SingleMove> single;
  for (Change change : kChanges) {
    const std::optional<Layout> layout = change(from.layout);
    if (!layout) continue;
    std::optional<RecordedLayout> after = try_record(*layout, recorder);
    if (!after || after->gib_with_nccl() >= from.gib_with_nccl()) continue;
    if (std::ranges::any_of(single, [&](const auto& one) { return is_the_same(one.move.after, *after); }))
      continue;
    single.push_back({change, {recorder.changes(from.layout, *layout), std::move(*after)}});
  }
  std::ranges::stable_sort(single, {}, [&](const SingleMove& one) {
    const RecordedLayout& after = one.move.after;
    const double cost = from.time ? after.time->seconds / from.time->seconds : after.flops() / from.flops();
    return (cost - 1) / (from.gib_with_nccl() - after.gib_with_nccl());
  });
  return single;
}

/// The layout with these changes, one on top of the other until it fits, or with all of them; a change that
/// takes no less on top of the others is left out. What is recomputed is left to mode auto, which takes no
/// more of it than the others leave necessary. Nothing if there is none.
std::optional<RecordedLayout> changed_until(const Fits& fits, const Layout& from,
                                            const std::vector<SingleMove>& single,
                                            const LayoutRecorder& recorder) {
  std::optional<RecordedLayout> together;
  for (const auto& [change, move] : single) {
    const Change made = contains(kRecomputations, change) ? recompute_as_needed : change;
    const std::optional<Layout> layout = made(together ? together->layout : from);
    if (!layout) continue;
    std::optional<RecordedLayout> after = try_record(*layout, recorder);
    if (!after || (together && after->gib_with_nccl() >= together->gib_with_nccl())) continue;
    together = std::move(after);
    if (fits(*together)) break;
  }
  return together;
}

/// Twice, four or eight times as many ranks: the fewest that fit with changes, and the fewest that fit as
/// they are; where there are none of both, the most.
std::vector<MemoryMove> moves_to_more_ranks(const Fits& fits, const Layout& from,
                                            const std::vector<SingleMove>& single,
                                            const LayoutRecorder& recorder) {
  constexpr int kMostTimes = 8;
  std::vector<MemoryMove> moves;
  for (int times = 2; times <= kMostTimes; times *= 2) {
    Layout more = from;
    more.dp_shard *= times;
    more.global_batch *= times;
    std::optional<RecordedLayout> after = try_record(more, recorder);
    if (!after) break;
    const bool is_enough = fits(*after);
    if (!is_enough && moves.empty()) {
      std::optional<RecordedLayout> changed = changed_until(fits, more, single, recorder);
      if (changed && fits(*changed))
        moves.push_back({recorder.changes(from, changed->layout), std::move(*changed)});
    }
    if (is_enough || (moves.empty() && times == kMostTimes)) {
      moves.push_back({recorder.changes(from, more), std::move(*after)});
      break;
    }
  }
  return moves;
}

}  // namespace

std::string_view RecordedLayout::automatic_recompute() const {
  const auto* decided = find_by(decisions, "activation_checkpoint.mode", &Decisions::Entry::name);
  return decided ? std::string_view(decided->value) : std::string_view();
}

RecordedLayout LayoutRecorder::record(const Layout& layout) const {
  const Config config = with_layout(config_, layout);
  const Experiment e = resolve_planned(config, planned_, static_cast<int>(layout.ranks()));
  auto [decided, roles] = decided_step(e, planned_.device, limit_gib_, machine_);
  RecordedLayout out =
      recorded_layout(layout, std::move(roles), machine_, snapshots_beside(e, planned_.device));
  out.decisions = std::move(decided.decisions.entries);
  return out;
}

LayoutKeys LayoutRecorder::changes(const Layout& from, const Layout& to) const {
  LayoutKeys keys = changed_keys(from, to);
  const auto together = [](const Layout& l) { return l.dp_replicate * l.dp_shard * l.local_batch; };
  if (config_.training.global_batch_size < 0 && together(from) != together(to) &&
      from.global_batch == to.global_batch)
    keys.emplace_back("training.global_batch_size", std::to_string(to.global_batch));
  return keys;
}

RecordedLayout recorded_layout(const Layout& layout, std::vector<StepPlan> roles, const Machine* machine,
                               const std::vector<int64_t>& snapshots) {
  RecordedLayout out{.layout = layout, .mean_flops = mean_flops(roles)};
  const auto nccl_of = [&](const StepPlan& plan) {
    return machine ? nccl_memory(plan.connections, *machine) : NcclMemory{};
  };
  if (machine) out.time = predict_step(roles, *machine);
  std::vector<int64_t> needed;
  for (size_t i = 0; i < roles.size(); ++i) {
    const int64_t bytes = roles[i].memory.total_bytes();
    out.bytes_of_roles.push_back(bytes);
    needed.push_back(bytes + nccl_of(roles[i]).bytes() + snapshots[i]);
  }
  out.role = static_cast<int>(std::ranges::max_element(needed) - needed.begin());
  out.plan = std::move(roles[out.role]);
  out.nccl = nccl_of(out.plan);
  out.snapshot = snapshots[out.role];
  return out;
}

std::vector<MemoryMove> memory_moves(const RecordedLayout& from, double limit_gib,
                                     const LayoutRecorder& recorder) {
  const auto fits = [&](const RecordedLayout& l) { return l.gib_with_nccl() <= limit_gib; };
  const std::vector<SingleMove> single = single_moves(from, recorder);
  std::vector<MemoryMove> moves;
  for (const auto& [change, move] : single) moves.push_back(move);
  if (std::ranges::any_of(moves, [&](const MemoryMove& move) { return fits(move.after); })) return moves;
  const std::optional<RecordedLayout> together = changed_until(fits, from.layout, single, recorder);
  if (together && single.size() > 1)
    moves.push_back({recorder.changes(from.layout, together->layout), *together});
  if (together && fits(*together)) return moves;
  std::ranges::move(moves_to_more_ranks(fits, from.layout, single, recorder), std::back_inserter(moves));
  return moves;
}

}  // namespace ottava
