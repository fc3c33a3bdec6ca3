#include "core/cuda/attention_graph.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ottava::cuda {
namespace {

using Memory = AttentionGraph::Memory;
using Role = AttentionGraph::Role;

/// The tensor of a call that is not backward's, and where its heads begin there.
template <class Args>
void* address_in(const AttentionGraph::Operand& o, const Args& a) {
  using enum AttentionGraph::Memory;
  const int64_t first = a.keys.first_head * (a.heads.heads / a.heads.kv_heads);
  const auto element = [&](const Tensor& tensor, int64_t of_head) -> void* {
    // Of the operand's type: a workspace is bytes.
    return static_cast<char*>(tensor.data) + (o.offset + first * of_head) * size_of(o.dtype);
  };
  switch (o.memory) {
    case qkv:
      return element(a.qkv, a.heads.head_dim);
    case out:
      return element(a.out, a.heads.head_dim);
    case lse:
      return element(a.lse, a.sequence);
    case keys:
      return element(a.keys.values, 0);
    default:
      break;
  }
  if constexpr (requires { a.dqkv; }) {
    switch (o.memory) {
      case dout:
        return element(a.dout, a.heads.head_dim);
      case dqkv:
        return element(a.dqkv, a.heads.head_dim);
      default:
        return element(a.workspace, 0);
    }
  }
  fail<Error>("attention_graph", "{} takes no part in forward", name_of(o.role));
}

}  // namespace

int64_t AttentionProblem::key_gradient_bytes() const {
  if (pass == Pass::forward || apart_heads == 0) return 0;
  return batch * keys() * 2 * apart_heads * heads.head_dim * size_of(DType::bf16);
}

AttentionProblem problem_of(Pass pass, AttentionHeads heads, int64_t batch, int64_t sequence,
                            const SeparateKeys& keys) {
  AttentionProblem p{.pass = pass, .heads = heads, .batch = batch, .sequence = sequence};
  if (keys.empty()) return p;
  p.apart_heads = keys.values.cols() / (2 * heads.head_dim);
  p.apart_positions = keys.values.rows() / batch;
  p.first_query = keys.first_query;
  return p;
}

const AttentionGraph::Operand& AttentionGraph::at(Role role) const {
  const auto found = std::ranges::find(operands, role, &Operand::role);
  if (found == operands.end()) fail<Error>("attention_graph", "{} takes no part in this pass", name_of(role));
  return *found;
}

bool AttentionGraph::has_packed_lse() const {
  const Operand& lse = at(Role::lse);
  return lse.strides[0] == lse.dims[1] * lse.dims[2];
}

AttentionGraph describe(const AttentionProblem& p) {
  const int64_t d = p.heads.head_dim, t = p.sequence, row = p.heads.row();
  AttentionGraph graph{.problem = p, .scale = 1.0f / std::sqrt(static_cast<float>(d))};
  const int64_t h = p.query_heads(), all = p.heads.heads, kv = p.kv_heads();
  // `positions` of a sequence lie one after the other, of which the call has `tokens`.
  struct Heads {
    Memory memory;
    int64_t heads, tokens, positions, row, offset = 0;
  };
  enum class Use { read, written };
  auto add = [&](Role role, const Heads& at, Use use) {
    graph.operands.push_back({.role = role,
                              .memory = at.memory,
                              .offset = at.offset,
                              .dims = {p.batch, at.heads, at.tokens, d},
                              .strides = {at.positions * at.row, d, at.row, 1},
                              .is_result = use == Use::written});
  };
  auto add_keys = [&](Role keys, Role values, Memory with_queries, Heads apart, Use use) {
    const Heads first = p.apart_heads > 0 ? apart : Heads{with_queries, kv, t, t, row, all * d};
    add(keys, first, use);
    Heads second = first;
    second.offset += kv * d;
    add(values, second, use);
  };
  const bool is_forward = p.pass == Pass::forward;
  add(Role::q, {Memory::qkv, h, t, t, row}, Use::read);
  add_keys(Role::k, Role::v, Memory::qkv, {Memory::keys, kv, p.keys(), p.apart_positions, 2 * kv * d},
           Use::read);
  add(Role::out, {Memory::out, h, t, t, all * d}, is_forward ? Use::written : Use::read);
  graph.operands.push_back({.role = Role::lse,
                            .memory = Memory::lse,
                            .dtype = DType::f32,
                            .dims = {p.batch, h, t, 1},
                            // The first one tells libraries that it is packed, and counts for nothing where
                            // there is one sequence.
                            .strides = {(p.batch == 1 ? h : all) * t, t, 1, 1},
                            .is_result = is_forward});
  if (is_forward) return graph;
  add(Role::dout, {Memory::dout, h, t, t, all * d}, Use::read);
  add(Role::dq, {Memory::dqkv, h, t, t, row}, Use::written);
  add_keys(Role::dk, Role::dv, Memory::dqkv, {Memory::key_gradients, kv, p.keys(), p.keys(), 2 * kv * d},
           Use::written);
  return graph;
}

const char* name_of(Role role) {
  constexpr const char* kNames[] = {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"};
  return kNames[static_cast<int>(role)];
}

void* address_of(const AttentionGraph::Operand& operand, const AttentionForward& args) {
  return address_in(operand, args);
}
void* address_of(const AttentionGraph::Operand& operand, const AttentionBackward& args) {
  return address_in(operand, args);
}

}  // namespace ottava::cuda
