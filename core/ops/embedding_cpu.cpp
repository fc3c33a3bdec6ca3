#include "core/cpu/vec.h"
#include "core/ops/embedding_kernels.h"

// Ceiling: memory bandwidth. dout is read once; each row of dtable that has tokens is read and written once,
// and stays in the L1 cache while its tokens are added.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

template <class T>
void backward(const EmbeddingBackward& a, TokensByRow tokens, Columns columns) {
  const T* dout = static_cast<const T*>(a.dout.data);
  float* dtable = static_cast<float*>(a.dtable.data);
  for (int64_t v = 0; v < columns.rows; ++v) {
    float* sum = dtable + v * columns.stride + columns.begin;
    for (int32_t k = tokens.first[v]; k < tokens.first[v + 1]; ++k) {
      const T* row = dout + tokens.order[k] * columns.stride + columns.begin;
      for_each_vec(columns.end - columns.begin, [&](int64_t c, auto lanes) {
        store(sum + c, load(sum + c, lanes) + load(row + c, lanes), lanes);
      });
    }
  }
}

}  // namespace

EmbeddingKernels embedding_kernels() { return {{backward<float>, backward<bf16>}}; }

}  // namespace ottava::cpu::OTTAVA_ISA
