#include "apps/decide/cpu_rates.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "apps/decide/core_waits.h"
#include "apps/decide/workbench.h"
#include "core/cpu/dnnl_adapter.h"
#include "core/cpu/isa.h"
#include "core/text/counted.h"
#include "core/text/number.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

constexpr std::string_view kSoFar = " so far, on a busy machine";

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

}  // namespace

BestRun best_run(Stream& stream, const Repeats& repeats, const std::function<void()>& work) {
  constexpr double kMostPart = 0.1;
  const bool on_cpu = stream.type() == DeviceType::cpu;
  StreamTimer timer(stream);
  work();
  BestRun best;
  double spent = 0;
  for (int run = 0; run < repeats.least_runs || spent < repeats.seconds; ++run) {
    const double before = on_cpu ? seconds_without_core() : 0;
    const double took = std::max(timer.milliseconds(work) / 1e3, 1e-9);
    const double waited = on_cpu ? seconds_without_core() - before : 0;
    if (took < best.seconds) best = {took, waited > kMostPart * parallel_threads() * took};
    spent += took;
  }
  return best;
}

MeasurementCache cpu_rates(std::string_view setting) {
  static constexpr MeasurementCache::Kind kPeaks{
      .name = "peaks",
      .title = "peaks of ",
      .things = "Peaks of matrix products and of memory",
      .is_entry = [](const Decisions::Entry& e) { return rate_of(&e) > 0; },
      // A slower moment says nothing.
      .stays = [](const Decisions::Entry& kept,
                  const Decisions::Entry& other) { return rate_of(&kept) > rate_of(&other); },
      // At first products in FP32 had a subnormal number as an operand; then nothing said how busy the
      // machine was.
      .version = 2};
  const char* bf16 = !cpu::dnnl_multiplies_bf16() ? "" : cpu::dnnl_uses_amx() ? " amx" : " avx512_bf16";
  return {kPeaks, setting,
          fmt::format("{}, {}, {}, {}{}", cpu_model(), counted(parallel_threads(), "thread"),
                      cpu::dnnl_version_text(), cpu::name_of(cpu::isa()), bf16)};
}

Decisions::Entry rate_entry(std::string name, double per_second, bool is_disturbed, std::string_view what) {
  return {std::move(name), fmt::format("{:.4e}", per_second),
          fmt::format("{}{}", what, is_disturbed ? kSoFar : "")};
}

double rate_of(const Decisions::Entry* entry) {
  return entry ? std::max(0.0, parse_number<double>(entry->value).value_or(0)) : 0;
}

bool is_settled(const Decisions::Entry* entry) { return entry && !entry->reason.ends_with(kSoFar); }

}  // namespace ottava
