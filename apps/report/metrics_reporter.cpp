#include "apps/report/metrics_reporter.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <utility>

#include "core/error.h"
#include "core/io/folder.h"
#include "core/io/json.h"
#include "core/io/json_lines.h"
#include "core/io/tensorboard.h"
#include "core/io/terminal.h"
#include "core/log.h"

namespace ottava {
namespace fs = std::filesystem;
namespace {

/// The first of `lines`, the longest first, that fits into one line of the terminal, else what fits of the
/// last. A line that wraps would be left behind by those that replace it.
std::string progress_line(const std::vector<std::string>& lines) {
  const size_t columns = terminal_columns(STDERR_FILENO),
               room = columns == std::string::npos ? columns : columns - 1;
  const auto fits = std::ranges::find_if(lines, [&](const std::string& line) { return line.size() <= room; });
  return fits != lines.end() ? *fits : lines.back().substr(0, room);
}

// The names that TorchTitan's dashboards use, and ours beside them.
std::vector<std::pair<std::string, double>> scalars_of(const StepMetrics& m) {
  return {{"loss_metrics/global_avg_loss", m.global_avg_loss},
          {"loss_metrics/global_max_loss", m.global_max_loss},
          {"grad_norm", m.grad_norm},
          {"throughput(tps)", m.tokens_per_second},
          {"tflops", m.tflops},
          {"mfu(%)", m.mfu_percent},
          {"mfu_conservative(%)", m.conservative_mfu_percent},
          {"utilization(%)", m.utilization_percent},
          {"time_metrics/end_to_end(s)", m.step_seconds},
          {"time_metrics/data_loading(s)", m.data_seconds},
          {"time_metrics/data_loading(%)", m.step_seconds > 0 ? 100 * m.data_seconds / m.step_seconds : 0},
          {"memory/max_active(GiB)", m.active_gib},
          {"memory/max_active(%)", m.active_percent},
          {"memory/max_reserved(GiB)", m.reserved_gib},
          {"memory/max_reserved(%)", m.reserved_percent},
          {"n_tokens_seen", static_cast<double>(m.tokens_seen)},
          {"lr", m.learning_rate},
          {"loss_scale", m.loss_scale},
          {"skipped_steps", static_cast<double>(m.skipped_steps)}};
}

bool is_dumb_terminal() {
  const char* name = std::getenv("TERM");
  return name != nullptr && std::string_view(name) == "dumb";
}

std::string time_left(double seconds) {
  auto total = static_cast<int64_t>(seconds);
  if (total >= 3600) return fmt::format("{}h {:02}m", total / 3600, total / 60 % 60);
  return fmt::format("{}m {:02}s", total / 60, total % 60);
}

}  // namespace

bool prints_colors(const MetricsConfig& config, int world_size, bool is_terminal) {
  const char* no_color = std::getenv("NO_COLOR");
  const bool asked_plain = config.disable_color_printing || (no_color != nullptr && *no_color != '\0');
  return is_terminal && world_size == 1 && !asked_plain && !is_dumb_terminal();
}

struct MetricsReporter::Files {
  std::unique_ptr<JsonLines> json_lines;
  std::unique_ptr<TensorBoardWriter> tensorboard;
  bool has_warned = false;

  void write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
    to_json_lines([&](JsonLines& file) { file.append(step, scalars); });
    to_tensorboard([&](TensorBoardWriter& file) {
      for (const auto& [name, value] : scalars) file.add_scalar(name, value, step);
    });
  }
  void to_json_lines(const std::function<void(JsonLines&)>& work) {
    if (json_lines) try_to([&] { work(*json_lines); });
  }
  void to_tensorboard(const std::function<void(TensorBoardWriter&)>& work) {
    if (tensorboard) try_to([&] { work(*tensorboard); });
  }

 private:
  // A full disk may have room again later, and what a run has trained is worth more than its metrics.
  void try_to(const std::function<void()>& write) {
    try {
      write();
    } catch (const Error& error) {
      if (std::exchange(has_warned, true)) return;
      log::warning("metrics are missing from their files from here on, for as long as this lasts: {}",
                   error.what());
    }
  }
};

MetricsReporter::MetricsReporter(Options options)
    : options_(std::move(options)), files_(std::make_unique<Files>()) {
  colors_ = prints_colors(options_.config, options_.world_size, isatty(STDOUT_FILENO) != 0);
  on_terminal_ = isatty(STDERR_FILENO) != 0 && options_.world_size == 1 && !is_dumb_terminal();
  if (options_.rank != 0 && !options_.config.save_for_all_ranks) return;
  const fs::path folder(options_.folder), events = folder / options_.config.save_tb_folder;
  if (options_.config.enable_json_lines) {
    require_folder("metrics", options_.folder);
    const std::string name =
        options_.rank == 0 ? "metrics.jsonl" : fmt::format("metrics.rank{}.jsonl", options_.rank);
    files_->json_lines = std::make_unique<JsonLines>(
        (folder / name).string(), options_.resumed_at,
        options_.goes_back ? JsonLines::Cut::kept_apart : JsonLines::Cut::dropped);
  }
  if (options_.config.enable_tensorboard) {
    const bool is_alone = options_.world_size == 1 || !options_.config.save_for_all_ranks;
    files_->tensorboard = std::make_unique<TensorBoardWriter>(
        (is_alone ? events : events / fmt::format("rank_{}", options_.rank)).string(), options_.resumed_at);
  }
}

MetricsReporter::~MetricsReporter() {
  if (on_terminal_) log::status({});
}

void MetricsReporter::log_step(const StepMetrics& metrics, const Scalars& more) {
  if (options_.rank == 0) log::info("{}", step_line(metrics, colors_));
  Scalars scalars = scalars_of(metrics);
  if (metrics.skipped_spikes)
    scalars.emplace_back("skipped_spikes", static_cast<double>(*metrics.skipped_spikes));
  if (metrics.z_loss) scalars.emplace_back("loss_metrics/global_avg_z_loss", *metrics.z_loss);
  scalars.insert(scalars.end(), more.begin(), more.end());
  files_->write(metrics.step, scalars);
}

void MetricsReporter::log_validation(int64_t step, const Validation& v, const MemoryUse& memory) {
  const std::string space = v.name.empty() ? "" : " ", slash = v.name.empty() ? "" : "/";
  if (options_.rank == 0) {
    log::info(
        "validate{}{} step: {:2}  loss: {:7.4f}  memory: {:5.2f}GiB({:.2f}%)  tps: {}  perplexity: {:.2f}{}",
        space, v.name, step, unsigned_nan(v.loss), memory.gib, memory.percent, rate_text(v.tokens_per_second),
        unsigned_nan(std::exp(v.loss)),
        v.bits_per_byte > 0 ? fmt::format("  bits/byte: {:.4f}", v.bits_per_byte) : "");
  }
  const auto name = [&](std::string_view metric) {
    return fmt::format("validation_metrics{}{}/{}", slash, v.name, metric);
  };
  Scalars scalars{{name("loss"), v.loss},
                  {name("throughput(tps)"), v.tokens_per_second},
                  {name("perplexity"), std::exp(v.loss)}};
  if (v.bits_per_byte > 0) scalars.emplace_back(name("bits_per_byte"), v.bits_per_byte);
  files_->write(step, scalars);
}

void MetricsReporter::log_evaluation(int64_t step, const std::string& line, const Scalars& scalars) {
  if (options_.rank == 0) log::info("evaluate step: {:2}  {}", step, line);
  files_->write(step, scalars);
}

void MetricsReporter::log_samples(int64_t step, const std::vector<std::string>& prompts,
                                  const std::vector<std::string>& texts) {
  Json samples(Json::Array{});
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (options_.rank == 0)
      log::info("sample step: {:2}  {} -> {}", step, Json(prompts[i]).dump(), Json(texts[i]).dump());
    samples.push(Json().set("prompt", prompts[i]).set("text", texts[i]));
    files_->to_tensorboard([&](TensorBoardWriter& file) {
      file.add_text(fmt::format("samples/{}", i), prompts[i] + texts[i], step);
    });
  }
  files_->to_json_lines([&](JsonLines& file) { file.append(step, "samples", std::move(samples)); });
}

void MetricsReporter::progress(int64_t step, double seconds_per_step, const std::string& planned) {
  if (!on_terminal_) return;
  auto now = std::chrono::steady_clock::now();
  if (!first_progress_) first_progress_ = {step, now};
  if (step >= options_.total_steps) return;
  if (now - last_progress_ < std::chrono::milliseconds(200)) return;
  last_progress_ = now;
  // A step says nothing of saves and validation, and little of other steps.
  const auto& [first_step, began] = *first_progress_;
  const double pace = step == first_step ? seconds_per_step
                                         : std::chrono::duration<double>(now - began).count() /
                                               static_cast<double>(step - first_step);
  const std::string left = time_left(pace * static_cast<double>(options_.total_steps - step)) + " left";
  const double done = static_cast<double>(step) / options_.total_steps;
  const std::string place = fmt::format("step {} of {}", step, options_.total_steps),
                    pace_of_step = fmt::format("{:.2f} s/step", seconds_per_step);
  log::status(progress_line(
      {fmt::format("{} [{:<30}] {}{}, {}", place, std::string(done * 30, '='), pace_of_step,
                   planned.empty() ? "" : fmt::format(" ({})", planned), left),
       fmt::format("{} [{:<10}] {}, {}", place, std::string(done * 10, '='), pace_of_step, left),
       fmt::format("{}, {}", place, left)}));
}

void MetricsReporter::flush() {
  if (on_terminal_) log::status({});
  files_->to_tensorboard([](TensorBoardWriter& file) { file.flush(); });
}

}  // namespace ottava
