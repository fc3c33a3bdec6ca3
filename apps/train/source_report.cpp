#include "apps/train/source_report.h"

#include <optional>
#include <utility>

#include "apps/data/training_data.h"
#include "core/log.h"
#include "core/metrics/step_line.h"
#include "parallel/checkpoint/patient_ranks.h"
#include "parallel/comm/agree.h"

namespace ottava {
namespace {
// Repeating data up to so often costs next to nothing (arXiv:2305.16264).
constexpr double kHarmlessEpochs = 4;
// How good an estimate of the windows of text is, about.
constexpr double kEstimateMargin = 1.1;
}  // namespace

SourceReport::SourceReport(const TrainingConfig& config, data::MixedLoader& data, RankGroups& ranks)
    : config_(config), data_(data), ranks_(ranks), since_log_(config.mixture.size()) {}

void SourceReport::check_epochs(int64_t samples) {
  checkpoint::PatientRanks(*ranks_.control).on_rank_0([&] {
    const std::vector<int64_t> counts = data_.mixture().counts(samples);
    for (size_t i = 0; i < counts.size(); ++i) {
      const MixtureSourceConfig& source = config_.mixture[i];
      data::TokenLoader& loader = *data_.sources()[i].loader;
      double windows = loader.estimate_samples();
      // What over_limit() would find in the middle of the run is to be known now.
      const double of_limit = source.max_epochs ? counts[i] / windows / *source.max_epochs : 0;
      if (of_limit > 1 / kEstimateMargin && of_limit <= kEstimateMargin)
        windows = static_cast<double>(count_windows(data_.sources()[i]));
      const double epochs = counts[i] / windows;
      const bool is_exact = loader.samples_per_epoch().has_value();
      const std::string text =
          fmt::format("{} would be seen {}{:.1f} times by step {} ({} of {} {})", source.name,
                      is_exact ? "" : "about ", epochs, config_.steps, with_commas(counts[i]),
                      with_commas(static_cast<int64_t>(windows)), windows == 1 ? "window" : "windows");
      if (source.max_epochs && epochs > *source.max_epochs) {
        fail<ConfigError>("training.mixture", "{}, but its max_epochs is {}: lower its weight or add data",
                          text, *source.max_epochs);
      }
      if (!source.max_epochs && epochs > kHarmlessEpochs)
        log::warning(
            "training.mixture: {}; more than {:.0f} passes begin to cost quality: lower its weight, or set "
            "max_epochs to accept it",
            text, kHarmlessEpochs);
    }
  });
}

void SourceReport::add(const BatchSource& read, const std::vector<float>& losses) {
  for (size_t i = 0; i < losses.size(); ++i) {
    Sum& sum = since_log_[read.sources()[i]];
    sum.loss += losses[i];
    sum.tokens += read.valid_tokens_of_samples()[i];
  }
}

MetricsReporter::Scalars SourceReport::log(int64_t samples) {
  std::vector<Sum> sums = std::exchange(since_log_, std::vector<Sum>(since_log_.size()));
  reduce_on_host(*ranks_.control_loss, view_of(&sums[0].loss, {2 * std::ssize(sums)}), "loss of sources");
  const int64_t sequence = data_.sources()[0].loader->options().seq_len;
  const std::vector<int64_t> counts = data_.mixture().counts(samples);
  MetricsReporter::Scalars scalars;
  std::string line;
  for (size_t i = 0; i < sums.size(); ++i) {
    const std::string& name = config_.mixture[i].name;
    const double count = counts[i], share = count / samples,
                 epochs = counts[i] > 0 ? count / data_.sources()[i].loader->estimate_samples() : 0;
    auto add = [&](std::string_view what, double value) {
      scalars.emplace_back(fmt::format("mixture/{}/{}", name, what), value);
    };
    line += fmt::format("{}{} {:.1f}%, {} tokens, {:.2f} epochs", i > 0 ? " | " : "", name, 100 * share,
                        with_commas(counts[i] * sequence), epochs);
    if (sums[i].tokens > 0) {
      const double loss = sums[i].loss / sums[i].tokens;
      line += fmt::format(", loss {:.4f}", unsigned_nan(loss));
      add("loss", loss);
    }
    add("tokens", count * sequence), add("share", share), add("epochs", epochs);
  }
  if (ranks_.is_first()) log::info("sources: {}", line);
  return scalars;
}

std::string SourceReport::over_limit(int64_t samples) const {
  const std::vector<int64_t> counts = data_.mixture().counts(samples);
  for (size_t i = 0; i < counts.size(); ++i) {
    const MixtureSourceConfig& source = config_.mixture[i];
    const std::optional<int64_t> windows = data_.sources()[i].loader->samples_per_epoch();
    if (!source.max_epochs || !windows) continue;
    const double epochs = static_cast<double>(counts[i]) / *windows;
    if (epochs > *source.max_epochs) {
      return fmt::format(
          "{} has been seen {:.2f} times, but its max_epochs is {}: lower its weight in a later stage or add "
          "data",
          source.name, epochs, *source.max_epochs);
    }
  }
  return {};
}

}  // namespace ottava
