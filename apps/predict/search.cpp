#include "apps/predict/search.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <compare>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "apps/config/resolved_layout.h"
#include "apps/predict/fewer_blocks.h"
#include "core/counted.h"
#include "core/error.h"

namespace ottava {
namespace {

using Reshard = ParallelismConfig::Reshard;
using Reduce = ParallelismConfig::Reduce;
using Mode = ActivationCheckpointConfig::Mode;

constexpr double kGib = 1 << 30;
constexpr size_t kRefined = 50;              // estimates whose neighbours are looked at
constexpr int64_t kPipelineBlocks = 12'000;  // recorded for estimates: some seconds
constexpr double kSurely = 0.95;  // of compute: the optimizer's part does not wait for a pipeline to fill
constexpr double kNear = 1.02;    // of the time of the last that is asked for: recorded as well

struct Estimate {
  Layout layout;
  StepFigures figures;
  double least_gib() const { return static_cast<double>(figures.alive_bytes) / kGib; }
};

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) out.push_back(d);
  return out;
}

bool has_key(const Layout& layout, const std::string& fixed) {
  const LayoutKeys keys = keys_of(layout);
  return std::ranges::any_of(keys, [&](const auto& key) { return key.first + "=" + key.second == fixed; });
}

void check_fixed(const std::vector<std::string>& fixed) {
  Layout any;  // with all keys that a layout may have
  any.recompute.mode = Mode::selective;
  any.float8 = "tensorwise";
  std::vector<std::string> names;
  for (const auto& [key, value] : keys_of(any)) names.push_back(key);
  for (const std::string& text : fixed) {
    if (std::ranges::find(names, text.substr(0, text.find('='))) == names.end() ||
        text.find('=') == std::string::npos)
      fail<ConfigError>("plan", "--fix {}: expected KEY=VALUE with one of the keys that are varied: {}", text,
                        fmt::format("{}", fmt::join(names, ", ")));
  }
}

std::vector<ActivationCheckpointConfig> recomputations(const ActivationCheckpointConfig& given) {
  std::vector<ActivationCheckpointConfig> out{{.mode = Mode::none, .selective_ac_option = "op"},
                                              {.mode = Mode::selective, .selective_ac_option = "op"},
                                              {.mode = Mode::full, .selective_ac_option = "op"}};
  if (given.mode == Mode::selective && !given.per_op()) out.push_back(given);
  return out;
}

/// The rest of a layout, ranks and sequences given.
void add_variants(const Layout& base, const Layout& given, const DeviceTable& device, bool all_reshards,
                  std::vector<Layout>& out) {
  for (const ActivationCheckpointConfig& recompute : recomputations(given.recompute)) {
    for (const bool float8 : {false, true}) {
      if (float8 && (given.float8.empty() || (device.is_gpu() && device.fp8_tflops == 0))) continue;
      for (const Reduce reduce : {Reduce::automatic, Reduce::once_per_step, Reduce::every_microbatch}) {
        const bool is_open = base.micro_batches() > 1 && base.shards() > 1;
        if ((reduce == Reduce::automatic) == is_open) continue;
        for (const Reshard reshard : {Reshard::automatic, Reshard::always, Reshard::never}) {
          if (reshard != Reshard::automatic && (!all_reshards || base.shards() == 1)) continue;
          if (base.pp > 1 && (reshard == Reshard::always || reduce == Reduce::every_microbatch)) continue;
          Layout layout = base;
          layout.recompute = recompute;
          layout.reduce = reduce;
          layout.reshard = reshard;
          layout.float8 = float8 ? given.float8 : "";
          layout.float8_gather = float8 && base.shards() > 1;
          out.push_back(std::move(layout));
        }
      }
    }
  }
}

// Bytes that every step needs of a rank: masters, gradients, moments and copies in bf16.
double least_gib(const Layout& l, double parameters) {
  const double moment = l.moments == DType::bf16 ? 2 : 4, copy = l.float8.empty() ? 2 : 0;
  return 0.95 * parameters / static_cast<double>(l.shards() * l.tp * l.pp) * (8 + 2 * moment + copy) / kGib;
}

bool is_asked_for(int64_t pp, const Layout& given, const std::vector<std::string>& fixed) {
  return pp == 1 || pp == given.pp ||
         std::ranges::find(fixed, fmt::format("parallelism.pipeline_parallel_degree={}", pp)) != fixed.end();
}

class Search {
 public:
  Search(const Config& config, const PlannedExperiment& planned, const Machine& machine,
         const SearchOptions& options)
      : config_(config),
        planned_(planned),
        machine_(machine),
        options_(options),
        recorder_(config, planned, &machine) {}

  SearchResult run() {
    const std::vector<Layout> layouts = all_layouts(planned_, machine_, options_);
    out_.layouts = std::ssize(layouts);
    estimate(layouts);
    refine();
    record();
    return std::move(out_);
  }

 private:
  // Layouts that differ only by sequences at a time: once one fails, more of them do.
  using Group = std::vector<Layout>;

  // Pipelines last: most of them need not be recorded once others are known.
  void estimate(std::vector<Layout> layouts) {
    const auto others = std::ranges::stable_partition(layouts, [](const Layout& l) { return l.pp == 1; });
    estimate_groups({layouts.begin(), others.begin()});
    sort();
    estimate_groups(worth_recording({others.begin(), others.end()}));
    if (out_.estimated == 0 && !closest_)
      fail<ConfigError>("plan", "no layout divides this model: {}", complaint_);
  }

  // Those that may be among the fastest, the most promising first; as they are recorded whole, of those that
  // nobody asked for as many as take some seconds.
  std::vector<Layout> worth_recording(const std::vector<Layout>& pipelines) const {
    std::vector<std::pair<LeastTime, Layout>> open;
    std::vector<Layout> out;
    const Layout given = layout_of(planned_.experiment);
    for (const Layout& layout : pipelines) {
      if (is_asked_for(layout.pp, given, options_.fixed)) {
        out.push_back(layout);
      } else if (const LeastTime least = least_time(layout);
                 found_.size() < options_.top || least.seconds <= found_[options_.top - 1].figures.seconds) {
        open.emplace_back(least, layout);
      }
    }
    std::ranges::stable_sort(open, {}, &std::pair<LeastTime, Layout>::first);
    int64_t blocks = 0;
    for (const auto& [least, layout] : open) {
      blocks += layout.micro_batches() * planned_.experiment.shape.model.layers;
      if (blocks > kPipelineBlocks && &layout != &open[0].second) break;
      out.push_back(layout);
    }
    return out;
  }

  // Ranks of a pipeline compute as much as those of the same layout without one, and idle while it fills. A
  // layout that differs in what it recomputes computes at most four thirds of that.
  struct LeastTime {
    bool is_guessed = true;  ///< from layouts that recompute something else; these come last
    double seconds = 0;
    auto operator<=>(const LeastTime&) const = default;
  };
  LeastTime least_time(const Layout& pipeline) const {
    double known = 0, guessed = 0;
    for (const Estimate& e : found_) {
      const Layout& l = e.layout;
      if (l.tp != pipeline.tp || l.cp != pipeline.cp || l.float8 != pipeline.float8) continue;
      if (l.local_batch == pipeline.local_batch && l.recompute == pipeline.recompute) {
        known = known == 0 ? e.figures.compute : std::min(known, e.figures.compute);
      } else {
        guessed = guessed == 0 ? e.figures.compute : std::min(guessed, e.figures.compute);
      }
    }
    const double compute = kSurely * (known > 0 ? known : guessed * 3 / 4);
    const ScheduleKind schedule = schedule_named(config_.parallelism.pipeline_parallel_schedule);
    const bool is_plain = schedule == ScheduleKind::gpipe || schedule == ScheduleKind::one_f_one_b;
    return {known == 0, compute * (1 + (is_plain ? static_cast<double>(pipeline.pp - 1) : 0.0) /
                                           static_cast<double>(pipeline.micro_batches()))};
  }

  void estimate_groups(const std::vector<Layout>& layouts) {
    std::vector<std::pair<Layout, Group>> groups;
    for (const Layout& layout : layouts) {
      Layout key = layout;
      key.local_batch = 0;
      const auto known = std::ranges::find(groups, key, &std::pair<Layout, Group>::first);
      (known == groups.end() ? groups.emplace_back(key, Group{}) : *known).second.push_back(layout);
    }
    const auto parameters = static_cast<double>(parameter_count(planned_.experiment.shape.model));
    each(groups.size(), [&](size_t i) {
      Group& group = groups[i].second;
      std::ranges::sort(group, {}, &Layout::local_batch);
      for (const Layout& layout : group) {
        if (least_gib(layout, parameters) > options_.limit_gib)
          return keep_closest(layout, least_gib(layout, parameters));
        if (!try_estimate(layout)) return;
      }
    });
  }

  void refine() {
    sort();
    std::vector<std::pair<Layout, StepFigures>> more;  // and what it takes with automatic
    for (size_t i = 0; i < std::min(kRefined, found_.size()); ++i) {
      for (const Reshard reshard : {Reshard::always, Reshard::never}) {
        Layout layout = found_[i].layout;
        if (layout.shards() == 1 || layout.pp > 1 || layout.reshard != Reshard::automatic) continue;
        layout.reshard = reshard;
        if (std::ranges::all_of(options_.fixed, [&](const std::string& f) { return has_key(layout, f); }))
          more.emplace_back(std::move(layout), found_[i].figures);
      }
    }
    out_.layouts += std::ssize(more);
    each(more.size(), [&](size_t i) { try_estimate(more[i].first, &more[i].second); });
    sort();
  }

  // In the order of estimated times, until so many fit as are asked for and others are slower. An estimate
  // says what a layout needs at least; whether it fits, its recording says.
  void record() {
    const size_t top = options_.top;
    size_t recorded = 0;
    auto is_wanted = [&](const Estimate& e) {
      return out_.best.size() < top ||
             (recorded < 2 * top && e.figures.seconds <= kNear * out_.best[top - 1].time->seconds);
    };
    while (recorded < found_.size() && is_wanted(found_[recorded])) {
      std::vector<std::optional<RecordedLayout>> next(std::min(top, found_.size() - recorded));
      each(next.size(), [&](size_t i) { next[i] = recorder_.record(found_[recorded + i].layout); });
      recorded += next.size();
      for (std::optional<RecordedLayout>& layout : next) {
        if (layout->gib() <= options_.limit_gib) {
          out_.best.push_back(std::move(*layout));
        } else {
          note_closest(layout->layout, layout->gib());
        }
      }
      std::ranges::stable_sort(out_.best, {}, [](const RecordedLayout& l) { return l.time->seconds; });
    }
    out_.recorded = static_cast<int64_t>(recorded);
    if (out_.best.size() > top)
      out_.best.erase(out_.best.begin() + static_cast<std::ptrdiff_t>(top), out_.best.end());
    if (!out_.best.empty() || !closest_) return;
    RecordedLayout closest = recorder_.record(*closest_);
    if (closest.gib() > options_.limit_gib) {
      out_.closest = std::move(closest);
    } else {
      out_.best.push_back(std::move(closest));  // its estimate was too high
    }
  }

  // False if it does not fit or cannot be. One that takes what another takes is not kept beside it.
  bool try_estimate(const Layout& layout, const StepFigures* other = nullptr) {
    std::optional<Estimate> e;
    std::string complaint;
    try {
      const Experiment experiment =
          resolve_planned(with_layout(config_, layout), planned_, static_cast<int>(layout.ranks()));
      e = Estimate{layout, estimate_step(experiment, planned_.device, machine_)};
    } catch (const ConfigError& error) {  // heads or tokens that do not divide
      complaint = error.what();
    }
    const std::lock_guard lock(mutex_);
    if (!e) {
      complaint_ = complaint;
      return true;  // with more sequences it may be
    }
    ++out_.estimated;
    if (other && e->figures == *other) return true;
    if (e->least_gib() > options_.limit_gib) {
      note_closest(layout, e->least_gib());
      return false;
    }
    found_.push_back(std::move(*e));
    return true;
  }
  void keep_closest(const Layout& layout, double gib) {
    const std::lock_guard lock(mutex_);
    note_closest(layout, gib);
  }
  void note_closest(const Layout& layout, double gib) {
    if (closest_ && closest_gib_ <= gib) return;
    closest_ = layout;
    closest_gib_ = gib;
  }
  // Equal times in a fixed order, whichever thread came first.
  void sort() {
    std::ranges::sort(found_, {}, [](const Estimate& e) {
      return std::tuple(e.figures.seconds, e.figures.alive_bytes, options_text(keys_of(e.layout)));
    });
  }

  /// work(i) for each, on all cores for a GPU; a CPU's libraries are asked on one.
  template <class Work>
  void each(size_t count, const Work& work) {
    const size_t threads =
        planned_.device.type == DeviceType::cuda ? std::max(1u, std::thread::hardware_concurrency()) : 1;
    std::atomic<size_t> next = 0;
    std::exception_ptr failure;
    auto run = [&] {
      try {
        for (size_t i = next++; i < count; i = next++) work(i);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        failure = std::current_exception();
        next = count;
      }
    };
    {
      std::vector<std::jthread> others;
      for (size_t i = 1; i < std::min(threads, count); ++i) others.emplace_back(run);
      run();
    }
    if (failure) std::rethrow_exception(failure);
  }

  const Config& config_;
  const PlannedExperiment& planned_;
  const Machine& machine_;
  const SearchOptions& options_;
  LayoutRecorder recorder_;
  std::mutex mutex_;
  std::vector<Estimate> found_;
  std::optional<Layout> closest_;
  double closest_gib_ = 0;
  std::string complaint_;
  SearchResult out_;
};

// The largest part of what the second takes longer.
std::string reason_of(const StepTime& first, const StepTime& second) {
  std::string what;
  double most = 0;
  auto compare = [&](const std::map<std::string, StepTime::Part>& a,
                     const std::map<std::string, StepTime::Part>& b, double StepTime::Part::*value,
                     std::string_view verb) {
    for (const auto& [name, part] : b) {
      const auto other = a.find(name);
      const double more = part.*value - (other == a.end() ? 0 : other->second.*value);
      if (more <= most) continue;
      most = more;
      what = fmt::format("{:.1f} ms more {} {}", more * 1e3, verb, name);
    }
  };
  compare(first.classes, second.classes, &StepTime::Part::seconds, "of");
  compare(first.axes, second.axes, &StepTime::Part::exposed, "waiting for");
  return what.empty() ? "as fast" : what;
}

// Keys and values of whole sequences travel in every layer: within a machine.
bool shares_sequences(const Experiment& e, const Machine& machine, int64_t tp, int64_t cp) {
  const auto divides = [&](int64_t sequence) { return sequence % context_parallel_unit(cp) == 0; };
  return tp * cp <= machine.ranks_per_node && divides(e.shape.sequence) &&
         (e.shape.validation_batch == 0 || divides(e.shape.validation_sequence));
}

// Within a machine sharding hides as much as a pipeline saves, which idles besides.
std::vector<int64_t> pipelines(const PlannedExperiment& planned, const Machine& machine,
                               const std::vector<std::string>& fixed) {
  constexpr int64_t kMost = 16;
  const Experiment& e = planned.experiment;
  const bool between_machines =
      e.mesh.world_size() > machine.ranks_per_node && !e.shape.model.tied_embeddings;
  std::vector<int64_t> out = divisors(e.mesh.world_size());
  std::erase_if(out, [&](int64_t pp) {
    const bool is_open = between_machines && pp <= std::min(kMost, e.shape.model.layers);
    return !is_open && !is_asked_for(pp, layout_of(e), fixed);
  });
  return out;
}

// Of other pipelines, every stage and micro-batch of which is recorded, the plainest, and those that are soon
// recorded: a tenth of a second for so many passes of a block.
bool is_plain_pipeline(const Layout& l, const Layout& given, int64_t layers) {
  constexpr int64_t kMostPasses = 1024;
  return l.dp_replicate == 1 && l.cp == given.cp && l.micro_batches() >= l.pp &&
         l.micro_batches() * layers <= kMostPasses &&
         (l.local_batch == 1 || l.local_batch == given.local_batch);
}

}  // namespace

std::vector<Layout> all_layouts(const PlannedExperiment& planned, const Machine& machine,
                                const SearchOptions& options) {
  check_fixed(options.fixed);
  const Layout given = layout_of(planned.experiment);
  const int64_t world = planned.experiment.mesh.world_size();
  const bool all_reshards = std::ranges::any_of(options.fixed, [](const std::string& f) {
    return f.starts_with("parallelism.fsdp_reshard_after_forward=");
  });
  std::vector<Layout> layouts;
  std::vector<std::pair<int64_t, int64_t>> outer;  // pp, tp
  for (const int64_t pp : pipelines(planned, machine, options.fixed))
    for (const int64_t tp : divisors(world / pp))
      if (tp <= machine.ranks_per_node) outer.emplace_back(pp, tp);
  for (const auto& [pp, tp] : outer) {
    const int64_t ranks = world / pp;
    for (const int64_t shards : divisors(ranks / tp)) {
      for (const int64_t cp : divisors(shards)) {
        if (cp > 1 && !shares_sequences(planned.experiment, machine, tp, cp)) continue;
        for (const int64_t batch : std::set<int64_t>{1, 2, 4, 8, 16, given.local_batch}) {
          // Ranks that share sequences could rather have one each, while there are several.
          if (cp > 1 && batch > 1 && batch != given.local_batch) continue;
          Layout layout = given;
          layout.tp = tp;
          layout.pp = pp;
          layout.cp = cp;
          layout.dp_shard = shards / cp;
          layout.dp_replicate = ranks / tp / shards;
          layout.local_batch = batch;
          if (given.global_batch % (layout.dp_replicate * layout.dp_shard * batch) != 0) continue;
          if (!is_asked_for(pp, given, options.fixed) &&
              !is_plain_pipeline(layout, given, planned.experiment.shape.model.layers))
            continue;
          add_variants(layout, given, machine.device, all_reshards, layouts);
        }
      }
    }
  }
  std::erase_if(layouts, [&](const Layout& layout) {
    return !std::ranges::all_of(options.fixed, [&](const std::string& f) { return has_key(layout, f); });
  });
  if (layouts.empty())
    fail<ConfigError>(
        "plan", "no layout of {} for a global batch of {}{}: change training.global_batch_size or --fix",
        counted(world, "rank"), counted(given.global_batch, "sequence"),
        options.fixed.empty() ? "" : fmt::format(" has {}", fmt::join(options.fixed, " and ")));
  return layouts;
}

SearchResult search_layouts(const Config& config, const PlannedExperiment& planned, const Machine& machine,
                            const SearchOptions& options) {
  SearchResult result = Search(config, planned, machine, options).run();
  for (const RecordedLayout& layout : result.best)
    result.reasons.push_back(&layout == result.best.data() ? ""
                                                           : reason_of(*result.best[0].time, *layout.time));
  return result;
}

}  // namespace ottava
