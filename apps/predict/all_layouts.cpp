#include "apps/predict/all_layouts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "apps/config/resolved_layout.h"
#include "apps/predict/recompute_modes.h"
#include "core/contains.h"
#include "core/error.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

using Reshard = ParallelismConfig::Reshard;
using Reduce = ParallelismConfig::Reduce;
using Mode = ActivationCheckpointConfig::Mode;

constexpr std::string_view kGathersNoCodes = "quantize.linear.float8.enable_fsdp_float8_all_gather=false";

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) out.push_back(d);
  return out;
}

void check_fixed(const std::vector<std::string>& fixed) {
  Layout any;  // with all keys that a layout may have
  any.recompute.mode = Mode::selective;
  any.float8 = "tensorwise";
  std::vector<std::string> names;
  for (const auto& [key, value] : keys_of(any)) names.push_back(key);
  for (const std::string& text : fixed) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || !contains(names, text.substr(0, equals)))
      fail<ConfigError>("plan", "--fix {}: expected KEY=VALUE with one of the keys that --search varies: {}",
                        text, fmt::format("{}", fmt::join(names, ", ")));
  }
}

std::vector<ActivationCheckpointConfig> recomputations(const ActivationCheckpointConfig& given,
                                                       const std::vector<std::string>& fixed) {
  if (contains(fixed, kAutoRecompute)) return {kModeAuto};
  std::vector<ActivationCheckpointConfig> out{kModeNone, kModeOp, kModeFull, kModeAllButAttention};
  if (given.mode == Mode::selective && given.every_nth_block() > 0) out.push_back(given);
  return out;
}

// Keys and values of whole sequences travel in every layer, so these ranks are within a machine.
bool may_share_sequences(const Layout& ranks, const Experiment& e, const Machine& machine) {
  const auto divides = [&](int64_t sequence) { return sequence % context_parallel_unit(ranks.cp) == 0; };
  return ranks.tp * ranks.cp <= machine.ranks_per_node && divides(e.shape.sequence) &&
         (e.shape.validation_batch == 0 || divides(e.shape.validation_sequence));
}

// Every stage and micro-batch of a pipeline is recorded. So of pipelines that the configuration does not ask
// for, only the plainest are tried, and those that are quickly recorded: so many passes of a block take a
// tenth of a second.
bool is_plain_pipeline(const Layout& l, const Layout& given, int64_t layers) {
  constexpr int64_t kMostPasses = 1024;
  return l.dp_replicate == 1 && l.cp == given.cp && l.micro_batches() >= l.pp &&
         l.micro_batches() * layers <= kMostPasses;
}

class Lister {
 public:
  Lister(const PlannedExperiment& planned, const Machine& machine, const std::vector<std::string>& fixed)
      : e_(planned.experiment), machine_(machine), fixed_(fixed), given_(layout_of(e_)) {}

  std::vector<Layout> list() && {
    const int64_t world = e_.mesh.world_size();
    for (const int64_t pp : divisors(world)) {
      if (!tries_pipeline(pp)) continue;
      for (const int64_t tp : divisors(world / pp)) {
        if (tp > machine_.ranks_per_node) continue;
        for (const int64_t shards : divisors(world / pp / tp)) {
          for (const int64_t cp : divisors(shards)) {
            Layout ranks = given_;
            ranks.pp = pp;
            ranks.tp = tp;
            ranks.cp = cp;
            ranks.dp_shard = shards / cp;
            ranks.dp_replicate = world / pp / tp / shards;
            add_batches(ranks);
          }
        }
      }
    }
    return std::move(out_);
  }

 private:
  // Within a machine, sharding hides as much traffic as a pipeline saves, and a pipeline also idles.
  bool tries_pipeline(int64_t pp) const {
    constexpr int64_t kMost = 16;
    const bool between_machines =
        e_.mesh.world_size() > machine_.ranks_per_node && !e_.shape.model.tied_embeddings;
    return is_asked_for(pp, given_, fixed_) ||
           (between_machines && pp <= std::min(kMost, e_.shape.model.layers));
  }

  // The rest of a layout, ranks given.
  void add_batches(const Layout& ranks) {
    const bool shares = ranks.cp > 1;
    if (shares && !may_share_sequences(ranks, e_, machine_)) return;
    for (const int64_t batch : std::set<int64_t>{1, 2, 4, 8, 16, given_.local_batch}) {
      // Ranks should have a sequence each rather than share one, as long as there are enough.
      if (shares && batch > 1 && batch != given_.local_batch) continue;
      Layout layout = ranks;
      layout.local_batch = batch;
      if (given_.global_batch % (layout.dp_replicate * layout.dp_shard * batch) != 0) continue;
      if (is_asked_for(ranks.pp, given_, fixed_) || is_plain_pipeline(layout, given_, e_.shape.model.layers))
        add_variants(layout);
    }
  }

  bool fixes(std::string_view key) const {
    return std::ranges::any_of(fixed_, [&](const std::string& text) { return text.starts_with(key); });
  }

  // Empty: no FP8.
  std::vector<std::string> recipes() const {
    const DeviceTable& device = machine_.device;
    if (given_.float8.empty() || (device.is_gpu() && device.fp8_tflops <= 0)) return {""};
    return {"", given_.float8};
  }
  static std::vector<Reduce> reductions(const Layout& base) {
    if (base.shards() == 1 || base.micro_batches() == 1) return {Reduce::automatic};
    if (base.pp > 1) return {Reduce::once_per_step};
    return {Reduce::once_per_step, Reduce::every_microbatch};
  }
  std::vector<Reshard> reshardings(const Layout& base) const {
    if (base.shards() == 1 || !fixes("parallelism.fsdp_reshard_after_forward=")) return {Reshard::automatic};
    if (base.pp > 1) return {Reshard::automatic, Reshard::never};
    return {Reshard::automatic, Reshard::always, Reshard::never};
  }

  // The rest of a layout, ranks and sequences given.
  void add_variants(const Layout& base) {
    const bool gathers_codes = base.shards() > 1 && !contains(fixed_, kGathersNoCodes);
    for (const ActivationCheckpointConfig& recompute : recomputations(given_.recompute, fixed_)) {
      for (const std::string& recipe : recipes()) {
        for (const Reduce reduce : reductions(base)) {
          for (const Reshard reshard : reshardings(base)) {
            Layout layout = base;
            layout.recompute = recompute;
            layout.reduce = reduce;
            layout.reshard = reshard;
            layout.float8 = recipe;
            layout.float8_gather = gathers_codes && !recipe.empty();
            if (has_all(layout, fixed_)) out_.push_back(std::move(layout));
          }
        }
      }
    }
  }

  const Experiment& e_;
  const Machine& machine_;
  const std::vector<std::string>& fixed_;
  const Layout given_;
  std::vector<Layout> out_;
};

}  // namespace

std::vector<Layout> all_layouts(const PlannedExperiment& planned, const Machine& machine,
                                const std::vector<std::string>& fixed) {
  check_fixed(fixed);
  std::vector<Layout> layouts = Lister(planned, machine, fixed).list();
  if (layouts.empty())
    fail<ConfigError>(
        "plan", "no layout of {} for a global batch of {}{}: change training.global_batch_size or --fix",
        counted(planned.experiment.mesh.world_size(), "rank"),
        counted(layout_of(planned.experiment).global_batch, "sequence"),
        fixed.empty() ? "" : fmt::format(" has {}", fmt::join(fixed, " and ")));
  return layouts;
}

bool has_all(const Layout& layout, const std::vector<std::string>& fixed) {
  if (fixed.empty()) return true;
  const LayoutKeys keys = keys_of(layout);
  return std::ranges::all_of(fixed, [&](const std::string& wanted) {
    return std::ranges::any_of(keys, [&](const auto& key) { return key.first + "=" + key.second == wanted; });
  });
}

bool is_asked_for(int64_t pp, const Layout& given, const std::vector<std::string>& fixed) {
  return pp == 1 || pp == given.pp ||
         contains(fixed, fmt::format("parallelism.pipeline_parallel_degree={}", pp));
}

}  // namespace ottava
