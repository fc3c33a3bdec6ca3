#pragma once

#include "core/stream.h"
#include "parallel/sharding/parameter_spec.h"

namespace ottava {

/// out[i] = the initial value of element `first + i` of a part's HF tensor, for i in [0, count). It depends
/// only on (seed, the tensor's name, the element's index in it).
void fill_initial(float* out, int64_t first, int64_t count, const ParameterPart& part, uint64_t seed);

/// Writes the initial values of a rank's shard of a parameter, f32 [local rows, local columns]. Nothing
/// happens on `meta`.
void initialise_shard(Stream& stream, const ParameterSpec& spec, const ShardCoordinates& at, uint64_t seed,
                      const Tensor& shard);

}  // namespace ottava
