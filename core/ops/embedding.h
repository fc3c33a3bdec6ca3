#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// out[n] = table[tokens[n] - vocab_begin]. A token whose row another rank holds gives a zero row, so that
/// the sum over tensor-parallel ranks is the embedding. tokens [N] i32; table [V_local,C] and out [N,C] share
/// f32 or bf16. Overwrites out. Throws ShapeError.
struct EmbeddingForward {
  Tensor tokens, table, out;
  int64_t vocab_begin = 0;
};
void embedding_forward(Stream& stream, const EmbeddingForward& args);

/// dtable[tokens[n] - vocab_begin] += dout[n], for each row in the order n = 0..N-1: deterministic, no
/// atomics. dout [N,C] f32|bf16; dtable [V_local,C] f32, accumulated; workspace i32, shape
/// embedding_backward_workspace(). Throws ShapeError.
struct EmbeddingBackward {
  Tensor tokens, dout, dtable;
  Tensor workspace;
  int64_t vocab_begin = 0;
};
void embedding_backward(Stream& stream, const EmbeddingBackward& args);
/// Of EmbeddingBackward::workspace, i32.
Shape embedding_backward_workspace(int64_t tokens, int64_t vocab_local);

}  // namespace ottava
