#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/ops/attention/attention.h"

namespace ottava::cuda {

/// One attention of a step, as a library plans it.
struct AttentionProblem {
  Pass pass = Pass::forward;
  AttentionHeads heads;
  int64_t batch = 0, sequence = 0;
  auto operator<=>(const AttentionProblem&) const = default;
};

/// Attention as a graph of named tensors and attributes: what a library is told about a problem, before it is
/// said in the library's words. Strides say where our packed layouts have each operand, so nothing is copied.
struct AttentionGraph {
  enum class Role : uint8_t { q, k, v, out, lse, dout, dq, dk, dv };
  enum class Memory : uint8_t {
    qkv,
    out,
    lse,
    dout,
    dqkv
  };  ///< tensors of AttentionForward and AttentionBackward
  struct Operand {
    Role role;
    Memory memory;
    int64_t offset = 0;  ///< elements into it
    DType dtype = DType::bf16;
    std::array<int64_t, 4> dims{}, strides{};  ///< [B, H, T, D]; lse [B, H, T, 1]
    bool is_result = false;
  };
  AttentionProblem problem;
  float scale = 1;  ///< of the scores: 1/sqrt(D)
  bool causal = true;
  bool deterministic = true;  ///< of backward
  std::vector<Operand> operands;

  const Operand& at(Role role) const;
};

/// lse, which forward leaves and backward reads, is the natural logarithm of the sum of exponentials of
/// scaled scores.
AttentionGraph describe(const AttentionProblem& problem);

const char* name_of(AttentionGraph::Role role);

/// Where the operand begins in the tensors of a call.
void* address_of(const AttentionGraph::Operand& operand, const AttentionForward& args);
void* address_of(const AttentionGraph::Operand& operand, const AttentionBackward& args);

}  // namespace ottava::cuda
