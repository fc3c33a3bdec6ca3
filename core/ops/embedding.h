#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// out[n] = table[tokens[n] - vocab_begin]; tokens of other ranks' rows give a zero row, so that the sum over
/// tensor-parallel ranks is the embedding. tokens [N] i32; table [V_local,C] and out [N,C] share f32 or bf16.
/// Overwrites out.
struct EmbeddingForward {
  Tensor tokens, table, out;
  int64_t vocab_begin = 0;
};
void embedding_forward(Stream& stream, const EmbeddingForward& args);

/// dtable[tokens[n] - vocab_begin] += dout[n], tokens in order n = 0..N-1 for each row: deterministic, no
/// atomics. dout [N,C] f32|bf16, dtable [V_local,C] f32 accumulated, workspace i32 of
/// embedding_backward_workspace() elements.
struct EmbeddingBackward {
  Tensor tokens, dout, dtable;
  Tensor workspace;
  int64_t vocab_begin = 0;
};
void embedding_backward(Stream& stream, const EmbeddingBackward& args);
Shape embedding_backward_workspace(int64_t tokens, int64_t vocab_local);

}  // namespace ottava
