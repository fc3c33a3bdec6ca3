#include "core/cpu/vec.h"
#include "core/ops/rms_norm_kernels.h"

// Ceiling: memory bandwidth. Forward moves 4 bytes per bf16 element and does 4 FLOPs on it; a row of C <= 16384 stays in
// the L1/L2 cache between its two passes.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

template <class T>
const T* row(const Tensor& t, int64_t i, int64_t cols) {
  return static_cast<const T*>(t.data) + i * cols;
}
template <class T>
T* mutable_row(const Tensor& t, int64_t i, int64_t cols) {
  return static_cast<T*>(t.data) + i * cols;
}

template <class T>
uint32_t forward(const RmsNormForward& a, int64_t begin, int64_t end) {
  const int64_t cols = a.x.shape[a.x.shape.rank() - 1];
  const int64_t whole = cols / kLanes * kLanes;
  const int tail = static_cast<int>(cols - whole);
  const T* weight = static_cast<const T*>(a.weight.data);
  const bool add = a.residual.data != nullptr;
  UVec amax{};
  for (int64_t i = begin; i < end; ++i) {
    const T* x = row<T>(a.x, i, cols);
    const T* residual = add ? row<T>(a.residual, i, cols) : nullptr;
    T* sum_out = add ? mutable_row<T>(a.sum, i, cols) : nullptr;
    Vec squares{};
    for (int64_t c = 0; c < whole; c += kLanes) {
      Vec h = load(x + c);
      if (add) {
        h = rounded_to<T>(h + load(residual + c));
        store(sum_out + c, h);
      }
      squares += h * h;
    }
    if (tail) {
      Vec h = load_partial(x + whole, tail);
      if (add) {
        h = rounded_to<T>(h + load_partial(residual + whole, tail));
        store_partial(sum_out + whole, h, tail);
      }
      squares += h * h;
    }
    float rstd = 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(cols) + a.eps);
    static_cast<float*>(a.rstd.data)[i] = rstd;
    const T* h = add ? sum_out : x;
    T* y = mutable_row<T>(a.y, i, cols);
    for (int64_t c = 0; c < whole; c += kLanes) {
      Vec out = rounded_to<T>(load(h + c) * rstd * load(weight + c));
      amax = max_bits(amax, abs_bits(out));
      store(y + c, out);
    }
    if (tail) {
      Vec out = rounded_to<T>(load_partial(h + whole, tail) * rstd * load_partial(weight + whole, tail));
      amax = max_bits(amax, abs_bits(out));
      store_partial(y + whole, out, tail);
    }
  }
  return max_lane(amax);
}

template <class T>
uint32_t backward(const RmsNormBackward& a, int64_t begin, int64_t end, float* partial) {
  const int64_t cols = a.x.shape[a.x.shape.rank() - 1];
  const int64_t whole = cols / kLanes * kLanes;
  const int tail = static_cast<int>(cols - whole);
  const T* weight = static_cast<const T*>(a.weight.data);
  const bool add = a.dresidual.data != nullptr;
  UVec amax{};
  for (int64_t i = begin; i < end; ++i) {
    const T* dy = row<T>(a.dy, i, cols);
    const T* x = row<T>(a.x, i, cols);
    const T* dresidual = add ? row<T>(a.dresidual, i, cols) : nullptr;
    T* dx = mutable_row<T>(a.dx, i, cols);
    const float rstd = static_cast<const float*>(a.rstd.data)[i];
    Vec dot{};
    for (int64_t c = 0; c < whole; c += kLanes) dot += load(dy + c) * load(weight + c) * load(x + c);
    if (tail) dot += load_partial(dy + whole, tail) * load_partial(weight + whole, tail) * load_partial(x + whole, tail);
    const float slope = rstd * rstd * sum(dot) / static_cast<float>(cols);

    // One step of the row: dweight's share and dx, in the lanes that exist.
    auto step = [&](Vec g, Vec h, Vec w, Vec through, Vec& weight_sum) {
      weight_sum += g * h * rstd;
      Vec out = rounded_to<T>(rstd * (g * w - h * slope) + through);
      amax = max_bits(amax, abs_bits(out));
      return out;
    };
    for (int64_t c = 0; c < whole; c += kLanes) {
      Vec weight_sum = load(partial + c);
      Vec out = step(load(dy + c), load(x + c), load(weight + c), add ? load(dresidual + c) : Vec{}, weight_sum);
      store(partial + c, weight_sum);
      store(dx + c, out);
    }
    if (tail) {
      Vec weight_sum = load_partial(partial + whole, tail);
      Vec through = add ? load_partial(dresidual + whole, tail) : Vec{};
      Vec out = step(load_partial(dy + whole, tail), load_partial(x + whole, tail), load_partial(weight + whole, tail),
                     through, weight_sum);
      store_partial(partial + whole, weight_sum, tail);
      store_partial(dx + whole, out, tail);
    }
  }
  return max_lane(amax);
}

}  // namespace

RmsNormKernels rms_norm_kernels() { return {forward<float>, forward<bf16>, backward<float>, backward<bf16>}; }

}  // namespace ottava::cpu::OTTAVA_ISA
