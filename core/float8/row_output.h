#pragma once

#include "core/float8/float8_tensor.h"
#include "core/float8/formats.h"
#include "core/stream.h"

namespace ottava::fp8 {

/// Where an operation leaves its output [N,C] in FP8, with scales that a row knows by itself: the same codes,
/// inverse scales, counts and flags as quantize() gives for the output as it would be stored, without its
/// being written and read.
struct RowOutput {
  Granularity granularity = Granularity::row;  ///< row or 1x128
  ScaleRounding rounding = ScaleRounding::none;
  Float8Codes out;                       ///< codes [N,C]
  Tensor counters, non_finite, largest;  ///< may be left out; as in Quantize
};

/// Throws ShapeError unless `output` fits a result of this dtype and shape, whose rows are multiples of 16.
void check_row_output(std::string_view op, const RowOutput& output, Shape shape);
/// Bytes that are written.
double bytes_of(const RowOutput& output);

}  // namespace ottava::fp8
