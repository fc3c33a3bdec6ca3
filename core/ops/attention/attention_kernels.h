#pragma once

#include <cstdint>

#include "core/cpu/bf16_products.h"
#include "core/cpu/isa.h"
#include "core/cpu/panel_product.h"
#include "core/ops/attention/attention.h"

namespace ottava {

/// A tile of scores on the CPU: rows are (head of the group, query), columns are keys. Row i belongs to query
/// first_query + i % queries of head i / queries. `stride` is a multiple of 32; columns past `keys` are
/// unused. Queries and keys are given by position in the sequence.
struct ScoreTile {
  float* scores = nullptr;  ///< unscaled Q K^T; overwritten
  int64_t rows = 0, queries = 0, keys = 0, stride = 0;
  int64_t first_query = 0, first_key = 0;
  const int32_t* document_start = nullptr;  ///< of the first query; may be null
  float scale_log2 = 0;                     ///< log2(e) / sqrt(D)
  bool is_bf16 = false;  ///< the tensors are: exponentials are exp2_for_bf16(), with NoSubnormals
};

/// One step of the online softmax, in powers of two: with m the new maximum of scale_log2 * scores,
///     probabilities = 2^(scale_log2 scores - m);  row_sum and sums are rescaled by 2^(row_max - m)
/// It may lie transposed, a column for each query of one head: then scores and probabilities are [keys,
/// kPanelColumns], sums [head_dim, kPanelColumns], row_max and row_sum [kPanelColumns], and columns past
/// tile.rows hold any finite numbers.
struct SoftmaxTile {
  ScoreTile tile;
  void* probabilities = nullptr;  ///< [rows, stride], may be the scores themselves when f32
  float* row_max = nullptr;
  float* row_sum = nullptr;
  float* sums = nullptr;  ///< [rows, head_dim]
  int64_t head_dim = 0;
};

/// probabilities = exp(S - lse); dscores = probabilities (dprobabilities - delta). lse and delta of the
/// tile's head g and query q lie at g * head_stride + q.
struct GradientTile {
  ScoreTile tile;
  float* dprobabilities = nullptr;
  const float* lse = nullptr;
  const float* delta = nullptr;
  int64_t head_stride = 0;
  void* probabilities = nullptr;
  void* dscores = nullptr;
};

/// What attention on the CPU needs besides products, for one thread.
struct AttentionKernels {
  /// Packs the rows of `block` from a strided matrix. `copy` is chosen by the element type of both; `widen`
  /// takes bf16 to f32.
  using Pack = void(const void* from, int64_t stride, void* to, cpu::Rows block);
  cpu::FloatKernel<Pack> copy;
  Pack* widen;
  /// One panel of a product's B (core/cpu/panel_product.h) in f32, from a B stored as it is or transposed;
  /// chosen by the stored type. `columns` of the panel's columns exist.
  using Panel = void(const void* from, int64_t stride, int64_t columns, int64_t k, float* to);
  cpu::FloatKernel<Panel> pack, pack_transposed;
  void (*multiply)(const cpu::PanelProduct&);
  /// In bf16, and in f32 for a tile that lies transposed.
  void (*softmax)(const SoftmaxTile&);
  void (*softmax_of_columns)(const SoftmaxTile&);
  /// Chosen by the type of the probabilities.
  cpu::FloatKernel<void(const GradientTile&)> gradient;
  /// to [rows, cols] = from^T, whose rows are `stride` elements apart.
  void (*transpose)(const float* from, int64_t stride, float* to, cpu::Rows block);
  /// to = factor * (sum over `parts` of the rows at from + part * part_stride); `store` is chosen by the type
  /// of `to`.
  struct Sum {
    const float* from = nullptr;
    int64_t parts = 1, part_stride = 0;
    float factor = 1;
  };
  cpu::FloatKernel<void(const Sum&, void* to, int64_t to_stride, cpu::Rows block)> store;
  /// to += factor * from.
  void (*add)(const float* from, float factor, float* to, int64_t to_stride, cpu::Rows block);
  /// out = sums / row_sum and lse = (row_max + log2 row_sum) ln 2, for one head's rows.
  cpu::FloatKernel<void(const SoftmaxTile&, void* out, int64_t out_stride, float* lse, cpu::Rows block)>
      finish;
  /// delta [B,H,T] for some tokens and heads; heads.cols is the head dimension.
  cpu::FloatKernel<void(const AttentionBackward&, float* delta, cpu::Rows tokens, cpu::Rows heads)> delta;
  cpu::FloatKernel<void(const AttentionDecode&, int64_t sequence, int64_t head)> decode;
};

namespace cpu {
void attention_forward(Stream& stream, const AttentionForward& args);
void attention_backward(Stream& stream, const AttentionBackward& args);
int64_t attention_workspace_bytes(Bf16Products products, Pass pass, DType dtype, AttentionHeads heads,
                                  int64_t batch, int64_t sequence, const SeparateKeys& keys);
}  // namespace cpu

namespace cuda {
void attention_forward(Stream& stream, const AttentionForward& args);
void attention_backward(Stream& stream, const AttentionBackward& args);
void attention_decode(Stream& stream, const AttentionDecode& args);
/// Bytes of backward's delta, f32 [B,H,T].
inline int64_t attention_delta_bytes(AttentionHeads heads, int64_t batch, int64_t sequence) {
  return (batch * heads.heads * sequence * static_cast<int64_t>(sizeof(float)) + 255) / 256 * 256;
}
/// Bytes of backward's dQ in f32, where one kernel may own whole sequences: 64 queries at a time.
inline int64_t attention_dqueries_bytes(AttentionHeads heads, int64_t batch, int64_t sequence) {
  if (heads.head_dim != 16) return 0;
  return batch * heads.heads * ((sequence + 63) / 64 * 64) * heads.head_dim *
         static_cast<int64_t>(sizeof(float));
}
/// Of both. Defined here so that it can be planned in a build without CUDA.
inline int64_t attention_workspace_bytes(Pass pass, AttentionHeads heads, int64_t batch, int64_t sequence) {
  if (pass == Pass::forward) return 0;
  return attention_delta_bytes(heads, batch, sequence) + attention_dqueries_bytes(heads, batch, sequence);
}
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::AttentionKernels, attention_kernels)
