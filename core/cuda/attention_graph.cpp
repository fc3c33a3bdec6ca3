#include "core/cuda/attention_graph.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ottava::cuda {
namespace {

using Memory = AttentionGraph::Memory;
using Role = AttentionGraph::Role;

void* element(const Tensor& tensor, int64_t index) {
  return static_cast<char*>(tensor.data) + index * static_cast<int64_t>(size_of(tensor.dtype));
}

}  // namespace

const AttentionGraph::Operand& AttentionGraph::at(Role role) const {
  const auto found = std::ranges::find(operands, role, &Operand::role);
  if (found == operands.end()) fail<Error>("attention_graph", "{} takes no part in this pass", name_of(role));
  return *found;
}

AttentionGraph describe(const AttentionProblem& p) {
  const int64_t d = p.heads.head_dim, t = p.sequence, row = p.heads.row();
  AttentionGraph graph{.problem = p, .scale = 1.0f / std::sqrt(static_cast<float>(d)), .operands = {}};
  auto add = [&](Role role, Memory memory, int64_t heads, int64_t of_row, int64_t offset, bool is_result) {
    graph.operands.push_back({.role = role,
                              .memory = memory,
                              .offset = offset,
                              .dims = {p.batch, heads, t, d},
                              .strides = {t * of_row, d, of_row, 1},
                              .is_result = is_result});
  };
  const int64_t h = p.heads.heads, kv = p.heads.kv_heads;
  const bool is_forward = p.pass == Pass::forward;
  add(Role::q, Memory::qkv, h, row, 0, false);
  add(Role::k, Memory::qkv, kv, row, h * d, false);
  add(Role::v, Memory::qkv, kv, row, (h + kv) * d, false);
  add(Role::out, Memory::out, h, h * d, 0, is_forward);
  graph.operands.push_back({.role = Role::lse,
                            .memory = Memory::lse,
                            .dtype = DType::f32,
                            .dims = {p.batch, h, t, 1},
                            .strides = {h * t, t, 1, 1},
                            .is_result = is_forward});
  if (is_forward) return graph;
  add(Role::dout, Memory::dout, h, h * d, 0, false);
  add(Role::dq, Memory::dqkv, h, row, 0, true);
  add(Role::dk, Memory::dqkv, kv, row, h * d, true);
  add(Role::dv, Memory::dqkv, kv, row, (h + kv) * d, true);
  return graph;
}

const char* name_of(Role role) {
  constexpr const char* kNames[] = {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"};
  return kNames[static_cast<int>(role)];
}

void* address_of(const AttentionGraph::Operand& operand, const AttentionForward& a) {
  switch (operand.memory) {
    case Memory::qkv:
      return element(a.qkv, operand.offset);
    case Memory::out:
      return element(a.out, operand.offset);
    case Memory::lse:
      return element(a.lse, operand.offset);
    default:
      fail<Error>("attention_graph", "{} takes no part in forward", name_of(operand.role));
  }
}

void* address_of(const AttentionGraph::Operand& operand, const AttentionBackward& a) {
  switch (operand.memory) {
    case Memory::qkv:
      return element(a.qkv, operand.offset);
    case Memory::out:
      return element(a.out, operand.offset);
    case Memory::lse:
      return element(a.lse, operand.offset);
    case Memory::dout:
      return element(a.dout, operand.offset);
    case Memory::dqkv:
      return element(a.dqkv, operand.offset);
  }
  return nullptr;
}

}  // namespace ottava::cuda
