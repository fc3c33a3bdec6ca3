#pragma once

#include "core/float8/float8_tensor.h"
#include "core/float8/formats.h"
#include "core/stream.h"

namespace ottava::fp8 {

/// Where an operation writes its bf16 output [N,C] in FP8, in the pass that makes it. The scale is one that a
/// row knows by itself, or a tensor's that is known beforehand. Codes, inverse scales, counts and flags are
/// those that quantize() would give for the output as stored. Codes are e4m3 or, with granularity tensor,
/// also e5m2, as recipes need. C is a multiple of 16 and, on a GPU, addresses are aligned to 16 bytes. The
/// operation's own `amax` must be left out: rows and blocks have their own amaxes, and `largest` serves as
/// the whole's.
struct RowOutput {
  Granularity granularity = Granularity::row;  ///< row, 1x128 or, with `amax`, tensor
  ScaleRounding rounding = ScaleRounding::none;
  Tensor amax = {};                      ///< granularity tensor: u32 [1], what the scale is made of
  Float8Codes out;                       ///< codes [N,C]
  Tensor counters, non_finite, largest;  ///< may be left out; as in Quantize
  bool empty() const { return out.empty(); }
};

/// Throws ShapeError unless `output` fits a result of dtype `made` and this shape, and `amax` is left out.
void check_row_output(std::string_view op, const RowOutput& output, DType made, Shape shape,
                      const Tensor& amax);

}  // namespace ottava::fp8
