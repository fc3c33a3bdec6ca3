#pragma once

#include <cstdint>

#include "core/stream.h"
#include "parallel/sharding/fsdp.h"

namespace ottava {

constexpr int64_t kRepeatedValues = 1'000'003;  ///< a prime: no two rows of a matrix are equal

/// Initial state for a benchmark, in no time: like Fsdp::initialise, but in each run of a Hugging Face
/// tensor's rows that a shard holds, only the first `values` elements are drawn (those of the run's first row
/// on) and then repeated, by copies on the device. Such a model trains as fast as any other, and is not worth
/// training.
void initialise_by_repetition(Stream& stream, Fsdp& parameters, uint64_t seed,
                              int64_t values = kRepeatedValues);

}  // namespace ottava
