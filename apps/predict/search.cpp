#include "apps/predict/search.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "apps/predict/all_layouts.h"
#include "apps/predict/each_on_threads.h"
#include "apps/predict/estimated_step.h"
#include "apps/predict/recompute_modes.h"
#include "core/contains.h"
#include "core/error.h"
#include "core/text/gib.h"

namespace ottava {
namespace {

using Reshard = ParallelismConfig::Reshard;

constexpr size_t kRefined = 50;              // estimates whose neighbours are looked at
constexpr int64_t kPipelineBlocks = 12'000;  // recorded for estimates: some seconds
constexpr int64_t kClosest = 10;             // looked at together where none fits
constexpr int64_t kPatterns = 6;             // of mode auto, recorded for a pipeline to find one that fits
constexpr double kSurely = 0.95;  // of compute: the optimizer's part does not wait for a pipeline to fill
constexpr double kNear = 1.02;    // of the time of the last that is asked for: recorded as well

struct Estimate {
  Layout layout;
  StepFigures figures;
  int64_t loss_chunk_rows = 0;  ///< that memory allows
  double least_gib() const { return gib(figures.alive_bytes + figures.nccl_bytes); }
};

/// What does not fit takes so much, or more if it was not recorded.
struct Refused {
  Layout layout;
  double least_gib = 0;
  enum class By { parameters, estimate, recording } by = By::parameters;
};

template <class T>
Layout with(Layout layout, T Layout::*member, T value) {
  layout.*member = value;
  return layout;
}

using ElementsByRule = std::map<UpdateRule, int64_t>;

// Bytes that every step needs of a rank: masters, gradients, moments and copies in bf16.
double least_gib(const Layout& l, const ElementsByRule& parameters) {
  const int64_t copy = l.float8.empty() ? 2 : 0;
  double bytes = 0;
  for (const auto& [rule, elements] : parameters)
    bytes += static_cast<double>(elements * (8 + moment_bytes(rule, l.moments) + copy));
  return gib(0.95 * bytes / (l.shards() * l.tp * l.pp));
}

class Search {
 public:
  Search(const Config& config, const PlannedExperiment& planned, const Machine& machine,
         const SearchOptions& options)
      : config_(config),
        planned_(planned),
        machine_(machine),
        options_(options),
        recorder_(config, planned, &machine, options.limit_gib) {}

  SearchResult run() {
    const std::vector<Layout> layouts = all_layouts(planned_, machine_, options_.fixed);
    out_.layouts = std::ssize(layouts);
    estimate(layouts);
    estimate_between();
    refine();
    estimate_between();
    record();
    return std::move(out_);
  }

 private:
  // Layouts that differ only in sequences at a time: once one fails, those with more sequences fail too.
  using Group = std::vector<Layout>;

  // Pipelines last: most of them need not be recorded once others are known.
  void estimate(std::vector<Layout> layouts) {
    const auto others =
        std::stable_partition(layouts.begin(), layouts.end(), [](const Layout& l) { return l.pp == 1; });
    estimate_groups({layouts.begin(), others});
    sort();
    estimate_groups(worth_recording({others, layouts.end()}));
    if (out_.estimated == 0 && refused_.empty()) refuse_all();
  }

  // Pipelines that may be among the fastest, the most promising first. They are recorded whole, so those that
  // the configuration does not ask for are limited to a few seconds; of those that it asks for, only what is
  // slower than twice as many as are shown is left out, since some of these may not fit in the end.
  std::vector<Layout> worth_recording(const std::vector<Layout>& pipelines) const {
    std::vector<std::pair<LeastTime, Layout>> open;
    std::vector<Layout> out;
    const Layout given = layout_of(planned_.experiment);
    for (const Layout& layout : pipelines) {
      const bool is_asked = is_asked_for(layout.pp, given, options_.fixed);
      const size_t faster = is_asked ? 2 * options_.top : options_.top;
      const LeastTime least = least_time(layout);
      if (found_.size() >= faster && least.seconds > found_[faster - 1].figures.seconds) continue;
      if (is_asked) {
        out.push_back(layout);
      } else {
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
                                           pipeline.micro_batches())};
  }

  void estimate_groups(const std::vector<Layout>& layouts) {
    std::vector<std::pair<Layout, Group>> groups;
    for (const Layout& layout : layouts) {
      Layout key = layout;
      key.local_batch = 0;
      const auto known = std::ranges::find(groups, key, &std::pair<Layout, Group>::first);
      (known == groups.end() ? groups.emplace_back(key, Group{}) : *known).second.push_back(layout);
    }
    const ElementsByRule parameters = elements_by_rule(parameter_table(planned_.experiment.shape).specs);
    each(groups.size(), [&](size_t i) {
      Group& group = groups[i].second;
      std::ranges::sort(group, {}, &Layout::local_batch);
      for (const Layout& layout : group) {
        if (least_gib(layout, parameters) > options_.limit_gib)
          return refuse({layout, least_gib(layout, parameters)});
        if (!try_estimate(layout)) return;
      }
    });
  }

  // Mode auto may stop between two modes where only the second fits (recompute_modes.h), or the first only
  // with more passes over the output layer. Without a pipeline it takes at least as long as a first that does
  // not fit, and computes at least three quarters of what the second does.
  void estimate_between() {
    sort();
    const Layout given = layout_of(planned_.experiment);
    std::vector<std::pair<double, Layout>> open;  // and how long it takes at least
    int64_t blocks = 0;
    for (const Estimate& e : found_) {
      const std::optional<ActivationCheckpointConfig> mode = mode_before_between(e.layout);
      if (!mode) continue;
      const Layout before = with(e.layout, &Layout::recompute, *mode),
                   automatic = with(e.layout, &Layout::recompute, kModeAuto);
      const Estimate *too_large = find_by(too_large_, before, &Estimate::layout),
                     *fits = find_by(found_, before, &Estimate::layout);
      if ((fits && fits->loss_chunk_rows >= e.loss_chunk_rows) || !may_try(automatic)) continue;
      if (!is_asked_for(e.layout.pp, given, options_.fixed)) {
        if (!too_large && !fits) continue;  // it was not worth recording
        blocks += kPatterns * e.layout.micro_batches() * planned_.experiment.shape.model.layers;
        if (blocks > kPipelineBlocks) continue;
      }
      const bool is_bound = too_large && e.layout.pp == 1;
      open.emplace_back(is_bound ? too_large->figures.seconds : e.figures.seconds * 3 / 4, automatic);
    }
    std::ranges::stable_sort(open, {}, &std::pair<double, Layout>::first);
    for (auto next = open.begin(); next != open.end() && next->first <= longest_wanted();) {
      const auto count = std::min<std::ptrdiff_t>(options_.top, open.end() - next);
      each(count, [&](size_t i) { try_estimate(next[i].second); });
      for (const auto end = next + count; next != end; ++next) between_.push_back(next->second);
      out_.layouts += count;
    }
    sort();
  }
  bool may_try(const Layout& automatic) const {
    return has_all(automatic, options_.fixed) && !contains(between_, automatic) &&
           !find_by(found_, automatic, &Estimate::layout);
  }
  // How long one of the fastest may take.
  double longest_wanted() const {
    if (found_.size() < options_.top) return std::numeric_limits<double>::infinity();
    std::vector<double> seconds;
    for (const Estimate& e : found_) seconds.push_back(e.figures.seconds);
    std::ranges::nth_element(seconds, seconds.begin() + static_cast<std::ptrdiff_t>(options_.top) - 1);
    return kNear * seconds[options_.top - 1];
  }

  void refine() {
    sort();
    std::vector<std::pair<Layout, StepFigures>> more;  // and what its neighbour takes
    for (size_t i = 0; i < std::min(kRefined, found_.size()); ++i) {
      const Layout& layout = found_[i].layout;
      if (layout.shards() == 1 || layout.pp > 1) continue;
      const auto add = [&](Layout twin) {
        if (has_all(twin, options_.fixed)) more.emplace_back(std::move(twin), found_[i].figures);
      };
      if (layout.reshard == Reshard::automatic) add(with(layout, &Layout::reshard, Reshard::never));
      if (layout.float8_gather) add(with(layout, &Layout::float8_gather, false));
    }
    out_.layouts += std::ssize(more);
    each(more.size(), [&](size_t i) { try_estimate(more[i].first, &more[i].second); });
    sort();
  }

  // In the order of estimated times, until as many fit as are asked for and the others are slower. An
  // estimate is a lower limit of what a layout needs; only its recording says whether it fits.
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
      std::vector<Estimate> instead;
      for (std::optional<RecordedLayout>& layout : next) {
        const StepFigures& figures = found_[recorded++].figures;
        if (is_known(layout->automatic_recompute())) continue;
        if (layout->gib_with_nccl() <= options_.limit_gib) {
          out_.best.push_back(std::move(*layout));
          continue;
        }
        refused_.push_back({layout->layout, layout->gib_with_nccl(), Refused::By::recording});
        const Layout automatic = with(layout->layout, &Layout::recompute, kModeAuto);
        if (is_before_between(layout->layout) && may_try(automatic) &&
            !find_by(instead, automatic, &Estimate::layout))
          instead.push_back({automatic, figures, found_[recorded - 1].loss_chunk_rows});
      }
      found_.insert(found_.begin() + static_cast<std::ptrdiff_t>(recorded), instead.begin(), instead.end());
      std::ranges::stable_sort(out_.best, {}, [](const RecordedLayout& l) { return l.time->seconds; });
    }
    out_.recorded = static_cast<int64_t>(recorded);
    if (out_.best.size() > top) out_.best.erase(out_.best.begin() + top, out_.best.end());
    if (out_.best.empty() && !refused_.empty()) record_closest();
  }

  // Of most it is known only what they take at least. Those that may take least are looked at more closely,
  // some at a time, until no other may take less than the least that was recorded.
  void record_closest() {
    std::optional<RecordedLayout> closest;
    for (std::vector<Refused*> next; !(next = perhaps_closer(closest)).empty();) {
      std::vector<std::optional<RecordedLayout>> recorded(next.size());
      each(next.size(), [&](size_t i) { recorded[i] = look_closer(*next[i]); });
      for (auto& l : recorded)
        if (l && (!closest || l->gib_with_nccl() < closest->gib_with_nccl())) closest = std::move(l);
    }
    if (!closest) refuse_all();
    if (closest->gib_with_nccl() > options_.limit_gib)
      out_.closest = std::move(closest);
    else
      out_.best.push_back(std::move(*closest));  // its estimate was too high
  }
  std::vector<Refused*> perhaps_closer(const std::optional<RecordedLayout>& closest) {
    const double most = closest ? closest->gib_with_nccl() : std::numeric_limits<double>::infinity();
    std::ranges::sort(refused_, {}, [](const Refused& r) {
      return std::tuple(r.least_gib, r.layout.recompute != kModeFull, r.layout.local_batch,
                        options_text(keys_of(r.layout)));
    });
    std::vector<Refused*> out;
    for (auto next = refused_.begin(); next != refused_.end() && next->least_gib < most; ++next)
      if (std::ssize(out) < kClosest) out.push_back(&*next);
    return out;
  }
  // By an estimate or, where that was made, by a recording, which leaves nothing else to know.
  std::optional<RecordedLayout> look_closer(Refused& r) {
    const double least = std::exchange(r.least_gib, std::numeric_limits<double>::infinity());
    try {
      if (r.by != Refused::By::parameters) return recorder_.record(r.layout);
      const Estimate e{r.layout, estimated(r.layout).step};
      r = {r.layout, std::max(least, e.least_gib()), Refused::By::estimate};
    } catch (const ConfigError& error) {  // heads or tokens that do not divide
      const std::lock_guard lock(mutex_);
      complaint_ = error.what();
    }
    return {};
  }

  [[noreturn]] void refuse_all() const {
    fail<ConfigError>("plan", "no layout fits the dimensions of this model: {}", complaint_);
  }
  Decided<StepFigures> estimated(const Layout& layout) const {
    return estimate_decided(
        resolve_planned(with_layout(config_, layout), planned_, static_cast<int>(layout.ranks())),
        planned_.device, machine_, options_.limit_gib);
  }

  // Of mode auto, unless that is all that is tried: what other modes are is known.
  bool is_known(std::string_view automatic_recompute) const {
    return is_a_mode(automatic_recompute) && !contains(options_.fixed, kAutoRecompute);
  }

  // Returns false if it does not fit. A layout that takes exactly what another takes is not kept beside it.
  bool try_estimate(const Layout& layout, const StepFigures* other = nullptr) {
    std::optional<Estimate> e;
    std::string complaint, automatic_recompute;
    try {
      const auto [decided, figures] = estimated(layout);
      if (const auto* mode = decided.decisions.find("activation_checkpoint.mode"))
        automatic_recompute = mode->value;
      e = Estimate{layout, figures, decided.shape.model_options.loss_chunk_rows};
    } catch (const ConfigError& error) {  // heads or tokens that do not divide
      complaint = error.what();
    }
    const std::lock_guard lock(mutex_);
    if (!e) {
      complaint_ = complaint;
      return true;  // with more sequences it may be
    }
    ++out_.estimated;
    if (is_known(automatic_recompute) || (other && e->figures == *other)) return true;
    if (e->least_gib() > options_.limit_gib) {
      if (is_before_between(layout)) too_large_.push_back(*e);
      refused_.push_back({layout, e->least_gib(), Refused::By::estimate});
      return false;
    }
    found_.push_back(std::move(*e));
    return true;
  }
  void refuse(const Refused& refused) {
    const std::lock_guard lock(mutex_);
    refused_.push_back(refused);
  }
  // Equal times in a fixed order, whichever thread came first.
  void sort() {
    std::ranges::sort(found_, {}, [](const Estimate& e) {
      return std::tuple(e.figures.seconds, e.figures.alive_bytes, options_text(keys_of(e.layout)));
    });
  }

  // On all cores for a GPU; a CPU's libraries are asked on one core.
  template <class Work>
  void each(size_t count, const Work& work) {
    each_on_threads(planned_.device.is_gpu() ? std::max(1u, std::thread::hardware_concurrency()) : 1, count,
                    work);
  }

  const Config& config_;
  const PlannedExperiment& planned_;
  const Machine& machine_;
  const SearchOptions& options_;
  LayoutRecorder recorder_;
  std::mutex mutex_;
  std::vector<Estimate> found_, too_large_;  ///< the latter: is_before_between()
  std::vector<Layout> between_;              ///< that estimate_between() has looked at
  std::vector<Refused> refused_;
  std::string complaint_;
  SearchResult out_;
};

}  // namespace

SearchResult search_layouts(const Config& config, const PlannedExperiment& planned, const Machine& machine,
                            const SearchOptions& options) {
  SearchResult result = Search(config, planned, machine, options).run();
  for (const RecordedLayout& layout : result.best)
    result.reasons.push_back(&layout == result.best.data() ? ""
                                                           : why_slower(*result.best[0].time, *layout.time));
  return result;
}

}  // namespace ottava
