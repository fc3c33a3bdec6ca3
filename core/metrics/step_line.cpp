#include "core/metrics/step_line.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

namespace ottava {
namespace {

std::string rates_text(const StepMetrics& m) {
  const std::string rate = rate_text(m.tokens_per_second);
  return m.devices == 1
             ? rate
             : fmt::format("{} per rank, {} in all", rate, rate_text(m.tokens_per_second * m.devices));
}

}  // namespace

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number < 0 ? -number : number);
  for (int64_t i = std::ssize(digits) - 3; i > 0; i -= 3) digits.insert(i, ",");
  return number < 0 ? "-" + digits : digits;
}

std::string rate_text(double per_second) {
  if (per_second >= 9.995 || std::isnan(per_second)) return with_commas(std::llround(per_second));
  if (!(per_second > 0)) return "0";
  // Of "{:.3g}", which has exponents.
  const int decimals = 2 - static_cast<int>(std::floor(std::log10(per_second)));
  std::string text = fmt::format("{:.{}f}", per_second, decimals);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

double unsigned_nan(double x) { return std::isnan(x) ? std::numeric_limits<double>::quiet_NaN() : x; }

std::string step_line(const StepMetrics& m, bool colors) {
  auto paint = [&](const char* color, std::string text) { return colors ? color + text + "\033[0m" : text; };
  std::string tflops = fmt::format("{:.2f}", m.tflops);
  tflops.replace(0, tflops.size() - 3, with_commas(static_cast<int64_t>(std::stod(tflops))));
  return paint("\033[31m", fmt::format("step: {:2}  ", m.step)) +
         paint("\033[32m", fmt::format("loss: {:7.4f}  ", unsigned_nan(m.global_avg_loss))) +
         (m.z_loss ? fmt::format("z_loss: {:.2e}  ", unsigned_nan(*m.z_loss)) : "") +
         paint("\033[38;2;180;60;0m", fmt::format("grad_norm: {:7.4f}  ", unsigned_nan(m.grad_norm))) +
         fmt::format("lr: {:.2e}  tokens: {}  ", m.learning_rate, with_commas(m.tokens_seen)) +
         paint("\033[38;2;54;234;195m",
               fmt::format("memory: {:5.2f}GiB({:.2f}%)  ", m.memory_gib, m.memory_percent)) +
         paint("\033[34m", fmt::format("tps: {}  ", rates_text(m))) +
         paint("\033[36m", fmt::format("tflops: {}  ", tflops)) +
         paint("\033[35m",
               fmt::format(
                   "mfu: {}  {}util: {:.2f}%", mfu_text(m.mfu_percent),
                   m.runs_float8 ? fmt::format("mfu(fp8): {}  ", mfu_text(m.conservative_mfu_percent)) : "",
                   m.utilization_percent));
}

std::string mfu_text(double percent, int digits) {
  return percent > 100 ? ">100%" : fmt::format("{:.{}f}%", percent, digits);
}

}  // namespace ottava
