#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/host_name.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// Bytes per second of this CPU's memory.
struct MemoryRates {
  double copied = 0;   ///< by a copy, which also reads the lines that it writes
  double updated = 0;  ///< where what is written was read before, as by AdamW
};

/// Rates of so many bytes while all of `ranks` do the same: every rank makes the call, and gets the same
/// numbers, of which each is the slowest rank's. They are kept in training.gemm_cache (`cache`) for each
/// power of two of MiB, to which `bytes` is rounded up, and each number of ranks on a machine (`host`), which
/// share its memory, and measured again by the rules of peaks (device_peaks.h); if one rank has to measure
/// one of them, all do.
MemoryRates memory_rates(std::string_view cache, int64_t bytes, Communicator& ranks,
                         const std::string& host = host_name());

}  // namespace ottava
