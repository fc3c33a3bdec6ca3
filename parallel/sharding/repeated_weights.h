#pragma once

#include <cstdint>

#include "core/stream.h"
#include "parallel/sharding/fsdp.h"

namespace ottava {

constexpr int64_t kRepeatedValues = 1'000'003;  ///< a prime: no two rows of a matrix are equal

/// Initial state for a benchmark, made quickly: like Fsdp::initialise(), but of each run of a Hugging Face
/// tensor's rows that a shard holds only the first `values` elements are drawn; copies on the device repeat
/// them. Such a model trains as fast as any other but is not worth training.
void initialise_by_repetition(Stream& stream, Fsdp& parameters, uint64_t seed,
                              int64_t values = kRepeatedValues);

}  // namespace ottava
