#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/ops/attention/attention.h"

namespace ottava::cuda {

/// An attention problem as a library plans it: everything about a call that matters for that, which leaves
/// out the heads of a row that it covers.
struct AttentionProblem {
  Pass pass = Pass::forward;
  AttentionHeads heads;
  int64_t batch = 0, sequence = 0;
  /// From SeparateKeys: their heads and positions, and the position of the first query. No heads: keys and
  /// values are qkv's.
  int64_t apart_heads = 0, apart_positions = 0, first_query = 0;

  int64_t kv_heads() const { return apart_heads > 0 ? apart_heads : heads.kv_heads; }
  int64_t query_heads() const { return heads.heads / heads.kv_heads * kv_heads(); }
  /// Positions whose keys some query of the call sees.
  int64_t keys() const { return first_query + sequence; }
  /// Bytes of backward's dK and dV for separate keys, which a library writes as bf16 [batch * keys(), 2 *
  /// kv_heads() * head_dim]; 0 if they are columns of dqkv.
  int64_t key_gradient_bytes() const;
  auto operator<=>(const AttentionProblem&) const = default;
};
AttentionProblem problem_of(Pass pass, AttentionHeads heads, int64_t batch, int64_t sequence,
                            const SeparateKeys& keys);

/// Attention as a graph of named tensors and attributes: what a library is told about a problem, but not yet
/// in its own terms. Strides describe each operand within our packed layouts, so nothing is copied.
struct AttentionGraph {
  enum class Role : uint8_t { q, k, v, out, lse, dout, dq, dk, dv };
  /// Tensors of AttentionForward and AttentionBackward; key_gradients is the beginning of the workspace.
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

  /// Throws Error for a role that has no part in this pass.
  const Operand& at(Role role) const;
  /// Whether lse's heads and positions are contiguous. They are not if a call covers only some heads of
  /// several sequences.
  bool has_packed_lse() const;
};

/// The graph of a problem. lse, which forward writes and backward reads, is the natural logarithm of the sum
/// of exponentials of scaled scores.
AttentionGraph describe(const AttentionProblem& problem);

const char* name_of(AttentionGraph::Role role);

/// Address of the operand in the tensors of a call.
void* address_of(const AttentionGraph::Operand& operand, const AttentionForward& args);
void* address_of(const AttentionGraph::Operand& operand, const AttentionBackward& args);

}  // namespace ottava::cuda
