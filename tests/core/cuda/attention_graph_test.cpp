#include "core/cuda/attention_graph.h"

#include <set>

#include "core/cuda/cudnn_graphs.h"
#include "core/cuda/runtime.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

// What a library is told about attention: every element of every operand lies where our kernels have it.

using namespace ottava;
using namespace ottava::cuda;
using Role = AttentionGraph::Role;

namespace {

constexpr AttentionHeads kHeads{.heads = 6, .kv_heads = 2, .head_dim = 16};
constexpr int64_t kBatch = 3, kSequence = 5;

AttentionGraph graph_of(Pass pass) {
  return describe({.pass = pass, .heads = kHeads, .batch = kBatch, .sequence = kSequence});
}

int64_t index_of(const AttentionGraph::Operand& o, int64_t b, int64_t h, int64_t t, int64_t d) {
  return o.offset + b * o.strides[0] + h * o.strides[1] + t * o.strides[2] + d * o.strides[3];
}

/// Calls body for every element of an operand [B, H, T, D].
template <class Body>
void for_each_element(const AttentionGraph::Operand& o, const Body& body) {
  for (int64_t b = 0; b < o.dims[0]; ++b) {
    for (int64_t h = 0; h < o.dims[1]; ++h) {
      for (int64_t t = 0; t < o.dims[2]; ++t) {
        for (int64_t d = 0; d < o.dims[3]; ++d) body(b, h, t, d);
      }
    }
  }
}

}  // namespace

TEST_CASE("query, key and value are parts of a row of qkv, and together all of it") {
  for (Pass pass : {Pass::forward, Pass::backward}) {
    const AttentionGraph graph = graph_of(pass);
    std::set<int64_t> seen;
    const std::pair<Role, int64_t> parts[] = {{Role::q, 0}, {Role::k, 6}, {Role::v, 8}};
    for (auto [role, first_head] : parts) {
      const auto& o = graph.at(role);
      CHECK(o.dims == std::array<int64_t, 4>{kBatch, role == Role::q ? 6 : 2, kSequence, 16});
      CHECK(o.dtype == DType::bf16);
      CHECK_FALSE(o.is_result);
      for_each_element(o, [&, first = first_head](int64_t b, int64_t h, int64_t t, int64_t d) {
        const int64_t want = (b * kSequence + t) * kHeads.row() + (first + h) * 16 + d;
        REQUIRE(index_of(o, b, h, t, d) == want);
        seen.insert(want);
      });
    }
    CHECK(static_cast<int64_t>(seen.size()) == kBatch * kSequence * kHeads.row());
  }
}

TEST_CASE("out is [tokens, heads x D], lse [B, H, T], and gradients lie as what they are of") {
  const AttentionGraph graph = graph_of(Pass::backward);
  for (Role role : {Role::out, Role::dout}) {
    for_each_element(graph.at(role), [&](int64_t b, int64_t h, int64_t t, int64_t d) {
      REQUIRE(index_of(graph.at(role), b, h, t, d) == ((b * kSequence + t) * 6 + h) * 16 + d);
    });
  }
  CHECK(graph.at(Role::lse).dtype == DType::f32);
  CHECK(graph.at(Role::lse).dims == std::array<int64_t, 4>{kBatch, 6, kSequence, 1});
  for_each_element(graph.at(Role::lse), [&](int64_t b, int64_t h, int64_t t, int64_t d) {
    REQUIRE(index_of(graph.at(Role::lse), b, h, t, d) == (b * 6 + h) * kSequence + t);
  });
  const std::pair<Role, Role> gradients[] = {{Role::q, Role::dq}, {Role::k, Role::dk}, {Role::v, Role::dv}};
  for (auto [of, gradient] : gradients) {
    CHECK(graph.at(gradient).offset == graph.at(of).offset);
    CHECK(graph.at(gradient).strides == graph.at(of).strides);
    CHECK(graph.at(gradient).dims == graph.at(of).dims);
    CHECK(graph.at(gradient).memory == AttentionGraph::Memory::dqkv);
  }
}

TEST_CASE("forward leaves out and lse, backward the gradients, deterministically") {
  const AttentionGraph forward = graph_of(Pass::forward), backward = graph_of(Pass::backward);
  CHECK(forward.operands.size() == 5);
  CHECK(backward.operands.size() == 9);
  auto results = [](const AttentionGraph& graph) {
    std::string names;
    for (const auto& o : graph.operands) names += o.is_result ? std::string(name_of(o.role)) + " " : "";
    return names;
  };
  CHECK(results(forward) == "out lse ");
  CHECK(results(backward) == "dq dk dv ");
  CHECK(backward.deterministic);
  CHECK(forward.causal);
  CHECK(backward.scale == 0.25f);
  CHECK_THROWS_WITH(forward.at(Role::dq), "[attention_graph] dq takes no part in this pass");
}

// Two of the KV heads of three sequences of eleven positions, queries from the fifth on.
TEST_CASE(
    "keys and values apart lie beside each other, and their gradients in what the workspace begins with") {
  const Tensor values{nullptr, DType::bf16, {kBatch * 11, 2 * 16}};
  const SeparateKeys apart{.values = values, .gradients = {}, .first_head = 1, .first_query = 4};
  const AttentionProblem problem = problem_of(Pass::backward, kHeads, kBatch, kSequence, apart);
  CHECK(problem.keys() == 9);
  CHECK(problem.query_heads() == 3);
  CHECK(problem.key_gradient_bytes() == kBatch * 9 * 2 * 16 * 2);
  CHECK(problem_of(Pass::forward, kHeads, kBatch, kSequence, apart).key_gradient_bytes() == 0);
  CHECK(problem_of(Pass::backward, kHeads, kBatch, kSequence, {}).key_gradient_bytes() == 0);
  const AttentionGraph graph = describe(problem);
  const std::pair<Role, Role> keys_values[] = {{Role::k, Role::v}, {Role::dk, Role::dv}};
  for (auto [keys, value] : keys_values) {
    const bool is_gradient = keys == Role::dk;
    std::set<int64_t> seen;
    for (Role role : {keys, value}) {
      const auto& o = graph.at(role);
      CHECK(o.dims == std::array<int64_t, 4>{kBatch, 1, 9, 16});
      CHECK(o.is_result == is_gradient);
      CHECK(o.memory == (is_gradient ? AttentionGraph::Memory::key_gradients : AttentionGraph::Memory::keys));
      for_each_element(o, [&](int64_t b, int64_t h, int64_t t, int64_t d) {
        REQUIRE(index_of(o, b, h, t, d) ==
                (b * (is_gradient ? 9 : 11) + t) * 32 + (role == value ? 16 : 0) + d);
        seen.insert(index_of(o, b, h, t, d));
      });
    }
    CHECK(static_cast<int64_t>(seen.size()) == kBatch * 9 * 32);
  }
  CHECK(graph.at(Role::q).dims == std::array<int64_t, 4>{kBatch, 3, kSequence, 16});
  CHECK(graph.at(Role::q).strides == graph_of(Pass::backward).at(Role::q).strides);
  CHECK(graph.at(Role::lse).strides == graph_of(Pass::backward).at(Role::lse).strides);
  CHECK_FALSE(graph.has_packed_lse());
  CHECK(graph_of(Pass::backward).has_packed_lse());
  CHECK(describe(problem_of(Pass::backward, kHeads, 1, kSequence, apart)).has_packed_lse());
  CHECK(describe(problem_of(Pass::forward, kHeads, kBatch, kSequence, {})).at(Role::k).strides ==
        graph_of(Pass::forward).at(Role::k).strides);

  // The second KV head's queries begin three heads into a row, and into the statistics.
  std::vector<uint16_t> memory(4096);
  std::vector<float> statistics(4096);
  const auto tensor = [](auto& v, DType dtype) {
    return Tensor{v.data(), dtype, {static_cast<int64_t>(v.size())}};
  };
  const Tensor x = tensor(memory, DType::bf16);
  const AttentionForward f{.qkv = x,
                           .out = x,
                           .lse = tensor(statistics, DType::f32),
                           .document_start = {},
                           .workspace = {},
                           .heads = kHeads,
                           .batch = kBatch,
                           .sequence = kSequence,
                           .keys = {x, {}, 1, 4}};
  CHECK(address_of(graph.at(Role::q), f) == memory.data() + 48);
  CHECK(address_of(graph.at(Role::out), f) == memory.data() + 48);
  CHECK(address_of(graph.at(Role::lse), f) == statistics.data() + 3 * kSequence);
  CHECK(address_of(graph.at(Role::v), f) == memory.data() + 16);
}

TEST_CASE("addresses of operands are those of their tensors and offsets") {
  std::vector<uint16_t> qkv(256), out(256), dout(256), dqkv(256);
  std::vector<float> lse(64);
  auto tensor = [](auto& v, DType dtype) {
    return Tensor{v.data(), dtype, {static_cast<int64_t>(v.size())}};
  };
  const AttentionHeads heads{.heads = 2, .kv_heads = 1, .head_dim = 16};
  const AttentionGraph graph = describe({.pass = Pass::backward, .heads = heads, .batch = 1, .sequence = 2});
  const AttentionBackward b{.qkv = tensor(qkv, DType::bf16),
                            .out = tensor(out, DType::bf16),
                            .lse = tensor(lse, DType::f32),
                            .dout = tensor(dout, DType::bf16),
                            .dqkv = tensor(dqkv, DType::bf16),
                            .document_start = {},
                            .workspace = {},
                            .heads = heads};
  const AttentionForward f{
      .qkv = b.qkv, .out = b.out, .lse = b.lse, .document_start = {}, .workspace = {}, .heads = heads};
  const std::pair<Role, void*> want[] = {
      {Role::q, qkv.data()},   {Role::k, qkv.data() + 32},   {Role::v, qkv.data() + 48},
      {Role::out, out.data()}, {Role::lse, lse.data()},      {Role::dout, dout.data()},
      {Role::dq, dqkv.data()}, {Role::dk, dqkv.data() + 32}, {Role::dv, dqkv.data() + 48}};
  for (auto [role, address] : want) CHECK(address_of(graph.at(role), b) == address);
  CHECK(address_of(graph.at(Role::v), f) == qkv.data() + 48);
  CHECK_THROWS_WITH(address_of(graph.at(Role::dq), f), "[attention_graph] dq takes no part in forward");
}

TEST_CASE("without cuDNN its attention is refused with what to do") {
  if (cudnn_is_built()) {
    if (device_count() > 0) return test::skip("this program has cuDNN's attention and a GPU for it");
    CHECK_THROWS_AS(CudnnGraphs(0), DeviceError);
    return;
  }
  for (const auto& call : {+[] { CudnnGraphs graphs(0); }, +[] { cudnn_library(); }}) {
    CHECK_THROWS_WITH(call(), Catch::Contains("[cudnn] this program was built without cuDNN's attention: "
                                              "build with CUDA, cudnn.h and cudnn_frontend.h") &&
                                  Catch::Contains("set attention.backend to auto or flash"));
  }
}
