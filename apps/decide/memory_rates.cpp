#include "apps/decide/memory_rates.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <string>

#include "apps/decide/cpu_rates.h"
#include "apps/decide/workbench.h"
#include "core/ops/elementwise.h"
#include "parallel/comm/agree.h"

namespace ottava {
namespace {

// Reads half of the bytes and writes the others.
BestRun best_copy(const Repeats& repeats, int64_t bytes) {
  Stream stream = Stream::cpu();
  Workbench bench(stream.device());
  const Tensor from = bench.tensor(DType::bf16, {bytes / 4}), to = bench.tensor(DType::bf16, from.shape);
  return best_run(stream, repeats, [&] { cast(stream, from, to); });
}

// Reads all of the bytes and writes half of them again.
BestRun best_update(const Repeats& repeats, int64_t bytes) {
  Stream stream = Stream::cpu();
  Workbench bench(stream.device());
  const Tensor sum = bench.tensor(DType::f32, {bytes / 8}), addend = bench.tensor(DType::f32, sum.shape);
  return best_run(stream, repeats, [&] { add(stream, sum, addend, sum); });
}

}  // namespace

MemoryRates memory_rates(std::string_view setting, int64_t bytes, Communicator& ranks) {
  constexpr double kSecondsIfKept = 0.25;  // to find a moment in which the machine does nothing else
  constexpr int kLeastRuns = 7;
  constexpr int64_t kMiB = 1 << 20;
  const auto mib = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>((bytes + kMiB - 1) / kMiB)));
  const std::string of =
      fmt::format("{} MiB{}", mib, ranks.size() > 1 ? fmt::format(" by each of {} ranks", ranks.size()) : "");
  const MeasurementCache cache = cpu_rates(setting);
  const Decisions kept = cache.read();
  const Decisions::Entry *copied = kept.find("copy of " + of), *updated = kept.find("update of " + of);
  double is_open = is_settled(copied) && is_settled(updated) ? 0 : 1;
  reduce_on_host(ranks, view_of(&is_open, {1}), "kept rates of memory", ReduceOp::max);
  if (is_open == 0) return {rate_of(copied), rate_of(updated)};

  const bool may_take_longer = !copied && !cache.file().empty();
  const Repeats repeats{.seconds = may_take_longer ? kSecondsIfKept : 0, .least_runs = kLeastRuns};
  const BestRun copy = best_copy(repeats, mib * kMiB), update = best_update(repeats, mib * kMiB);
  double slowest[] = {copy.seconds, update.seconds, copy.is_disturbed ? 1.0 : 0.0,
                      update.is_disturbed ? 1.0 : 0.0};
  reduce_on_host(ranks, view_of(slowest, {4}), "rates of memory", ReduceOp::max);
  const auto moved = static_cast<double>(mib * kMiB);
  const auto entry = [](const std::string& name, const Decisions::Entry* before, double rate,
                        double is_disturbed, const char* what) {
    return rate_entry(name, std::max(rate, rate_of(before)), is_disturbed > 0 && !is_settled(before), what);
  };
  const Decisions::Entry found_copy = entry("copy of " + of, copied, moved / slowest[0], slowest[2],
                                            "bytes/s of the fastest copy"),
                         found_update = entry("update of " + of, updated, 1.5 * moved / slowest[1],
                                              slowest[3], "bytes/s of the fastest update in place");
  cache.write({found_copy, found_update});
  return {rate_of(&found_copy), rate_of(&found_update)};  // in the digits that later runs will read
}

}  // namespace ottava
