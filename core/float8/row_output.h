#pragma once

#include "core/float8/float8_tensor.h"
#include "core/float8/formats.h"
#include "core/stream.h"

namespace ottava::fp8 {

/// Where an operation leaves its bf16 output [N,C] in FP8, from the pass that makes it, with scales that a
/// row knows by itself or a tensor's that is known before: the same codes, inverse scales, counts and flags
/// as quantize() gives for the output as it would be stored. Codes are e4m3 or, with granularity tensor,
/// e5m2: what recipes have. C is a multiple of 16 and, on a GPU, addresses are aligned to 16 bytes. The
/// operation's `amax` must be left out: rows and blocks have their own, and `largest` serves as one.
struct RowOutput {
  Granularity granularity = Granularity::row;  ///< row, 1x128 or, with `amax`, tensor
  ScaleRounding rounding = ScaleRounding::none;
  Tensor amax = {};                      ///< granularity tensor: u32 [1], what the scale is made of
  Float8Codes out;                       ///< codes [N,C]
  Tensor counters, non_finite, largest;  ///< may be left out; as in Quantize
  bool empty() const { return out.empty(); }
};

/// Throws ShapeError unless `output` fits a result of this type and shape and `amax` is left out.
void check_row_output(std::string_view op, const RowOutput& output, DType made, Shape shape,
                      const Tensor& amax);

}  // namespace ottava::fp8
