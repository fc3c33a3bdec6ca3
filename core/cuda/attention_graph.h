#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/ops/attention/attention.h"

namespace ottava::cuda {

/// One attention of a step, as a library plans it: what of a call decides, and not which heads of a row it is
/// about.
struct AttentionProblem {
  Pass pass = Pass::forward;
  AttentionHeads heads;
  int64_t batch = 0, sequence = 0;
  /// Of SeparateKeys: heads and positions that they are of, and the position of the first query. No heads:
  /// keys and values are qkv's.
  int64_t apart_heads = 0, apart_positions = 0, first_query = 0;

  int64_t kv_heads() const { return apart_heads > 0 ? apart_heads : heads.kv_heads; }
  int64_t query_heads() const { return heads.heads / heads.kv_heads * kv_heads(); }
  /// Positions whose keys some query of the call sees.
  int64_t keys() const { return first_query + sequence; }
  /// Backward's dK and dV of a call apart, which a library leaves in bf16 [batch * keys(), 2 * kv_heads() *
  /// head_dim]; 0: they are columns of dqkv.
  int64_t key_gradient_bytes() const;
  auto operator<=>(const AttentionProblem&) const = default;
};
AttentionProblem problem_of(Pass pass, AttentionHeads heads, int64_t batch, int64_t sequence,
                            const SeparateKeys& keys);

/// Attention as a graph of named tensors and attributes: what a library is told about a problem, before it is
/// said in the library's words. Strides say where our packed layouts have each operand, so nothing is copied.
struct AttentionGraph {
  enum class Role : uint8_t { q, k, v, out, lse, dout, dq, dk, dv };
  /// Tensors of AttentionForward and AttentionBackward; key_gradients: what the workspace begins with.
  enum class Memory : uint8_t { qkv, out, lse, dout, dqkv, keys, key_gradients };
  struct Operand {
    Role role;
    Memory memory;
    int64_t offset = 0;  ///< elements into it
    DType dtype = DType::bf16;
    std::array<int64_t, 4> dims{}, strides{};  ///< [B, H, T, D]; lse [B, H, T, 1]
    bool is_result = false;
  };
  AttentionProblem problem;
  float scale = 1;            ///< of the scores: 1/sqrt(D)
  bool causal = true;         ///< the last query sees the last key, and each one before it a key fewer
  bool deterministic = true;  ///< of backward
  std::vector<Operand> operands;

  const Operand& at(Role role) const;
  /// Whether lse's heads and positions lie one behind the other without a gap: not where a call is about some
  /// of the heads of several sequences.
  bool has_packed_lse() const;
};

/// lse, which forward leaves and backward reads, is the natural logarithm of the sum of exponentials of
/// scaled scores.
AttentionGraph describe(const AttentionProblem& problem);

const char* name_of(AttentionGraph::Role role);

/// Where the operand begins in the tensors of a call.
void* address_of(const AttentionGraph::Operand& operand, const AttentionForward& args);
void* address_of(const AttentionGraph::Operand& operand, const AttentionBackward& args);

}  // namespace ottava::cuda
