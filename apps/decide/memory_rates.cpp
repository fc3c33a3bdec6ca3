#include "apps/decide/memory_rates.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <string>

#include "apps/decide/cpu_rates.h"
#include "apps/decide/workbench.h"
#include "apps/devices/available_memory.h"
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

// What is kept, else measured by all ranks at once. The slowest rank counts, of what is kept too: files of
// several machines differ.
struct KeptRate {
  std::string name;
  const char* what;  ///< in the file
  double bytes;      ///< read and written by `best_run`
  std::function<BestRun(const Repeats& repeats)> best_run;
};
double per_second(const KeptRate& rate, const MeasurementCache& cache, Communicator& ranks) {
  constexpr double kSecondsIfKept = 0.25;  // to find a moment in which the machine does nothing else
  constexpr int kLeastRuns = 7;
  const Decisions kept = cache.read();
  const Decisions::Entry* before = kept.find(rate.name);
  const bool is_open = !is_settled(before), may_take_longer = !before && !cache.file().empty();
  double most[] = {is_open ? 1.0 : 0.0, may_take_longer ? 1.0 : 0.0, -rate_of(before)};
  reduce_on_host(ranks, view_of(most, {3}), "kept rates of memory", ReduceOp::max);
  const double least_kept = -most[2];
  if (most[0] == 0) return least_kept;
  const BestRun best = rate.best_run({.seconds = most[1] > 0 ? kSecondsIfKept : 0, .least_runs = kLeastRuns});
  double slowest[] = {best.seconds, best.is_disturbed ? 1.0 : 0.0};
  reduce_on_host(ranks, view_of(slowest, {2}), "rates of memory", ReduceOp::max);
  const Decisions::Entry found = rate_entry(rate.name, std::max(rate.bytes / slowest[0], least_kept),
                                            slowest[1] > 0 && !is_settled(before), rate.what);
  cache.write({found});
  return rate_of(&found);  // in the digits that later runs will read
}

}  // namespace

MemoryRates memory_rates(std::string_view setting, int64_t bytes, Communicator& ranks,
                         const std::string& host) {
  constexpr int64_t kMiB = 1 << 20;
  const auto mib = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>((bytes + kMiB - 1) / kMiB)));
  const int64_t rounded = mib * kMiB;
  const int64_t sharers = ranks_that_share(host, ranks);
  const std::string of =
      fmt::format("{} MiB{}", mib, sharers > 1 ? fmt::format(" by each of {} ranks", sharers) : "");
  const MeasurementCache cache = cpu_rates(setting);
  const KeptRate copy{.name = "copy of " + of,
                      .what = "bytes/s of the fastest copy",
                      .bytes = static_cast<double>(rounded),
                      .best_run = [=](const Repeats&r) { return best_copy(r, rounded); }},
      update{.name = "update of " + of,
             .what = "bytes/s of the fastest update in place",
             .bytes = 1.5 * static_cast<double>(rounded),
             .best_run = [=](const Repeats&r) { return best_update(r, rounded); }};
  return {.copied = per_second(copy, cache, ranks), .updated = per_second(update, cache, ranks)};
}

}  // namespace ottava
