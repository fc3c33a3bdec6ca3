#pragma once

#include "core/cpu/isa.h"
#include "core/ops/embedding.h"

namespace ottava {

/// Tokens sorted by table row: the positions of those of row v are order[first[v]] .. order[first[v + 1] -
/// 1], ascending.
struct TokensByRow {
  const int32_t* first;
  const int32_t* order;
};

/// Adds dout's rows to columns [begin, end) of all rows of dtable.
struct EmbeddingKernels {
  cpu::FloatKernel<void(const EmbeddingBackward&, TokensByRow, cpu::Columns)> backward;
};

namespace cuda {
void embedding_forward(Stream& stream, const EmbeddingForward& args);
void embedding_backward(Stream& stream, const EmbeddingBackward& args);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::EmbeddingKernels, embedding_kernels)
