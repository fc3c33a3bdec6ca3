#pragma once

#include "core/ops/rope.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

namespace cuda {
class FusedAttention;
}

/// Largest head dimension that attention takes.
inline constexpr int64_t kMaxHeadDim = 512;
/// True for multiples of 8 up to kMaxHeadDim on the CPU; for 16, 32, 64 and 128 on CUDA.
bool takes_head_dim(DeviceType target, int64_t head_dim);

/// Keys and values apart from the queries (context parallel). The queries of a call are positions
/// [first_query, first_query + sequence) of sequences of S positions. Only the query heads that read KV heads
/// [first_head, first_head + G) are computed: their columns of out and dqkv and their rows of lse are
/// written, the others left alone. qkv's own keys and values are not read, and dqkv's are not written. Of
/// `values`, positions below first_query + sequence are read. What a query sees is summed in the same order
/// as by a call with all S positions and all heads, so out, lse and dq have the same bits (on the CPU if both
/// have the same number of threads, on cuda with our kernels).
struct SeparateKeys {
  /// [B*S, 2*G*D], qkv's dtype, in order of position: keys of the G heads, then their values
  Tensor values;
  /// f32, the shape of `values`: backward accumulates dK and dV here; not needed by forward
  Tensor gradients;
  int64_t first_head = 0, first_query = 0;

  bool empty() const { return values.empty(); }
};

/// Causal attention with grouped key/value heads (arXiv:2305.13245), computed in tiles with an online softmax
/// (arXiv:2205.14135): no T x T matrix exists. Per batch and head, scale = 1/sqrt(D):
///     S = scale Q K^T, masked to j <= i (and to i's document);  lse_i = log sum_j exp S_ij
///     out = exp(S - lse) V
/// qkv [B*T, row()] f32|bf16 (rotated), out [B*T, H*D] same dtype, lse [B,H,T] f32. Overwrites out and lse.
/// D as takes_head_dim() says. Softmax statistics and sums are f32; with bf16, probabilities may be rounded
/// to bf16 before they are multiplied by V. Throws ShapeError, and MemoryError for a workspace that is too
/// small. On the CPU bitwise the same for any number of threads.
struct AttentionForward {
  Tensor qkv, out, lse;
  /// May be left out: i32 [B*T], first position of each query's document within its sequence.
  Tensor document_start;
  Tensor workspace;  ///< u8, at least attention_workspace_bytes(), aligned to 64 bytes (CUDA: 256)
  AttentionHeads heads;
  int64_t batch = 0, sequence = 0;
  SeparateKeys keys = {};  ///< may be left out: those of qkv
  /// On `cuda`: cuDNN's kernels instead of ours (core/cuda/fused_attention.h), which then determine the
  /// workspace.
  cuda::FusedAttention* fused = nullptr;
};
void attention_forward(Stream& stream, const AttentionForward& args);

/// dqkv from dout by the formulas of arXiv:2307.08691, with delta = sum_D dout * out. dout is shaped like
/// out; dqkv [B*T, row()] is overwritten (dq and dk are still rotated: the inverse rope comes after).
/// Our kernels are deterministic: each tile of dK and dV is summed by one worker in query order. cuDNN's are
/// if `fused` was made so. On the CPU bitwise the same for the same number of threads. Other arguments and
/// errors as in forward.
struct AttentionBackward {
  Tensor qkv, out, lse, dout, dqkv;
  Tensor document_start;
  Tensor workspace;
  AttentionHeads heads;
  int64_t batch = 0, sequence = 0;
  SeparateKeys keys = {};
  cuda::FusedAttention* fused = nullptr;
};
void attention_backward(Stream& stream, const AttentionBackward& args);

enum class Pass { forward, backward };
/// Bytes of workspace for the stream's target with as many threads as it would use now. On the CPU it grows
/// with threads and linearly with the sequence; our kernels on CUDA need 4 bytes per query and head, and
/// of a head dimension of 16 64 more, and only in backward, where they take up to 4,194,240 positions. With
/// `fused`, plans the problem with cuDNN and returns what that needs. Throws ShapeError; with `fused`
/// DeviceError if cuDNN cannot.
int64_t attention_workspace_bytes(const Stream& stream, Pass pass, DType dtype, AttentionHeads heads,
                                  int64_t batch, int64_t sequence, cuda::FusedAttention* fused = nullptr,
                                  const SeparateKeys& keys = {});

/// One new query per sequence against a cache of keys and values, attending to positions [0, length). q and
/// out [B,H*D], keys and values [B,capacity,H_kv*D], all of one dtype, f32 or bf16. Overwrites out. Throws
/// ShapeError.
struct AttentionDecode {
  Tensor q, keys, values, out;
  AttentionHeads heads;
  int64_t length = 0;
};
void attention_decode(Stream& stream, const AttentionDecode& args);

}  // namespace ottava
