#pragma once

#include "core/stream.h"
#include "parallel/sharding/parameter_spec.h"

namespace ottava {

/// Writes the initial values of a rank's shard of a parameter, f32 [local rows, local columns]: each element
/// depends only on (seed, HF tensor name, its index there). Nothing happens on `meta`.
void initialise_shard(Stream& stream, const ParameterSpec& spec, const ShardCoordinates& at, uint64_t seed,
                      const Tensor& shard);

}  // namespace ottava
