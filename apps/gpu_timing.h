#pragma once

#include <algorithm>
#include <vector>

#include "core/buffer.h"
#include "core/ops/elementwise.h"
#include "core/stream.h"

namespace ottava {

/// Tensors of one measurement before step 1, all zero, in memory of their own that goes when it ends.
class MeasurementTensors {
 public:
  explicit MeasurementTensors(Stream& stream) : stream_(stream) {}
  Tensor tensor(DType dtype, Shape shape) {
    constexpr int64_t kLeastBytes = 256;  // a workspace of nothing has an address too
    const int64_t bytes = shape.numel() * static_cast<int64_t>(size_of(dtype));
    buffers_.emplace_back(stream_.device(), static_cast<size_t>(std::max(bytes, kLeastBytes)));
    const Tensor t{buffers_.back().data(), dtype, shape};
    fill_zero(stream_, t);
    return t;
  }

 private:
  Stream& stream_;
  std::vector<Buffer> buffers_;
};

/// Best milliseconds of `work()` on the stream, after one call that is not counted: plans and clocks settle
/// in it.
template <class Work>
double best_milliseconds(Stream& stream, const Work& work) {
  constexpr int kRuns = 7;
  Event begin(stream.device()), end(stream.device());
  work();
  double best = 1e30;
  for (int i = 0; i < kRuns; ++i) {
    begin.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    best = std::min(best, end.milliseconds_since(begin));
  }
  return best;
}

}  // namespace ottava
