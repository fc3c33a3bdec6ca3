#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "apps/decide/measurement_cache.h"
#include "core/stream.h"

namespace ottava {

/// The best run of some work.
struct BestRun {
  double seconds = 1e30;
  bool is_disturbed = false;  ///< on a CPU: its threads had no core for more than a tenth of it, others had
};
/// How long work is repeated, after one run that is not counted.
struct Repeats {
  double seconds = 0;
  int least_runs = 1;
};
BestRun best_run(Stream& stream, const Repeats& repeats, const std::function<void()>& work);

/// Where rates of this CPU (its model, threads, library and instruction set) are kept for later runs, the
/// highest under each name. `setting`: training.gemm_cache.
MeasurementCache cpu_rates(std::string_view setting);

/// A rate as it is kept. `what` says in the file which rate it is: "FLOP/s of the fastest product".
Decisions::Entry rate_entry(std::string name, double per_second, bool is_disturbed, std::string_view what);
/// 0 for what is no rate, and for null.
double rate_of(const Decisions::Entry* entry);
/// Whether later runs need not measure again: there is one, and nothing disturbed it.
bool is_settled(const Decisions::Entry* entry);

}  // namespace ottava
