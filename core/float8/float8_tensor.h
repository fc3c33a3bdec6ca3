#pragma once

#include "core/float8/granularity.h"
#include "core/tensor.h"

namespace ottava::fp8 {

/// FP8 codes of a matrix and the inverse scales that belong to them: x ~ codes * scale_inverse. They are made
/// together and travel together.
struct Float8Codes {
  Tensor codes;          ///< e4m3 or e5m2 [R,C]
  Tensor scale_inverse;  ///< scale_dtype(), scale_shape(R, C)
  bool empty() const { return codes.empty(); }
  /// Bytes of both.
  int64_t bytes() const { return empty() ? 0 : codes.bytes() + scale_inverse.bytes(); }
};

/// A matrix [R,C] in FP8, in either or both orientations, with scales as products read them (tiled where
/// GranularityTraits say so). Owns nothing, like Tensor; core/memory/float8_allocation.h does. A product
/// reads the orientation whose columns it contracts.
struct Float8Tensor {
  Float8Codes rowwise;                            ///< [R,C], scales along columns
  Float8Codes columnwise;                         ///< [C,R], what quantizing the transposed matrix gives
  Granularity granularity = Granularity::tensor;  ///< of both
  bool empty() const { return rowwise.empty() && columnwise.empty(); }
};

}  // namespace ottava::fp8
