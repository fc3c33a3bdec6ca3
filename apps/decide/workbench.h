#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/cost.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// Fills memory of any dtype with numbers of both signs below `largest` in magnitude, whether read as bf16 or
/// as f32, in an irregular order: a GPU that multiplies zeros draws less power and clocks higher. They repeat
/// every 65,536 bf16 numbers. Synchronizes the stream.
void fill_with_numbers(Stream& stream, const Tensor& memory, float largest);
/// Indices below `limit`, in irregular order.
std::vector<int32_t> scattered_indices(int64_t count, int64_t limit);

/// Tensors for one measurement, in memory that lives as long as the bench; on `meta` without memory.
class Workbench {
 public:
  /// `device` meta: tensors have shapes only.
  explicit Workbench(Device device) : device_(device) {}
  /// Filled by fill_with_numbers() with magnitudes below 2; one-byte floats are finite.
  Tensor tensor(DType dtype, Shape shape);
  /// Gives products on `stream` a workspace of so many bytes (set_matmul_workspace()).
  void give_workspace(Stream& stream, int64_t bytes);
  /// scattered_indices() as i32.
  Tensor indices(int64_t count, int64_t limit);
  /// u32 bits of amaxes for numbers of magnitudes below `largest`, of which none then saturates or has the
  /// largest code.
  Tensor amaxes(Shape shape, float largest);
  Tensor zeros(DType dtype, Shape shape);
  /// The table of rope() [T, D]: cosines and sines of one angle. Numbers that are rotated in place again and
  /// again keep their size; by others they would become infinite, or subnormal, which takes ten times as
  /// long.
  Tensor rotations(Shape shape);
  /// Scales that change nothing: f32, or e8m0.
  Tensor ones(DType dtype, Shape shape);

 private:
  Tensor filled(DType dtype, Shape shape, const std::function<void(Stream&, const Tensor&)>& fill);
  Device device_;
  std::vector<Buffer> buffers_;
};

/// Prepares a recorded operation on tensors of its shapes from the bench: numbers of both signs, scales that
/// change nothing, rotations, amaxes that lose none of the numbers, tokens and targets below `vocabulary`
/// (the rank's), zeros elsewhere; where a product is of one tensor and itself, one. Each call of the result
/// runs it.
std::function<void(Stream&)> prepare(const RecordedOperation& operation, Workbench& bench,
                                     int64_t vocabulary);

/// Times work on a stream.
class StreamTimer {
 public:
  explicit StreamTimer(Stream& stream) : stream_(stream), begin_(stream.device()), end_(stream.device()) {}
  /// Milliseconds of what `work()` enqueues; waits for its end.
  template <class Work>
  double milliseconds(const Work& work) {
    begin_.record(stream_);
    work();
    end_.record(stream_);
    end_.synchronize();
    return end_.milliseconds_since(begin_);
  }

 private:
  Stream& stream_;
  Event begin_, end_;
};

/// Best milliseconds of `work()` on the stream, after one call that is not counted, in which plans and clocks
/// settle.
template <class Work>
double best_milliseconds(Stream& stream, const Work& work) {
  constexpr int kRuns = 7;
  StreamTimer timer(stream);
  work();
  double best = 1e30;
  for (int i = 0; i < kRuns; ++i) best = std::min(best, timer.milliseconds(work));
  return best;
}

/// The same for two kinds of work, called alternately, so that whatever else the machine does affects both.
/// Beside another process it may take a tenth of a second until each thread of a CPU has a core.
template <class First, class Second>
std::pair<double, double> best_milliseconds_by_turns(Stream& stream, const First& first,
                                                     const Second& second) {
  constexpr int kRounds = 12;
  StreamTimer timer(stream);
  first();
  second();
  std::pair<double, double> best{1e30, 1e30};
  for (int i = 0; i < kRounds; ++i) {
    best.first = std::min(best.first, timer.milliseconds(first));
    best.second = std::min(best.second, timer.milliseconds(second));
  }
  return best;
}

}  // namespace ottava
