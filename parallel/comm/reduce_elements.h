#pragma once

#include <cstdint>
#include <span>

#include "parallel/comm/communicator.h"

namespace ottava {

/// out[i] = inputs[0][i] op inputs[1][i] op ..., in this order. bf16 is summed in f32 and rounded once; in
/// max a NaN wins. `out` may be one of the inputs. Dtypes as in communicator.h; others throw
/// ShapeError.
void reduce_elements(DType dtype, ReduceOp op, std::span<const void* const> inputs, void* out, int64_t count);

}  // namespace ottava
