#include "core/cuda/fused_attention.h"

#include "core/error.h"
#include "core/ops/elementwise.h"
#include "core/round_up.h"

namespace ottava::cuda {
namespace {

/// The beginning of the workspace, padded so that cuDNN's own part has the alignment that it asks for.
int64_t gradient_bytes(const AttentionProblem& p) {
  constexpr int64_t kAlignment = 256;
  return round_up(p.key_gradient_bytes(), kAlignment);
}

/// gradients += dK and dV, which cuDNN wrote in bf16, for a prefix of each sequence.
void add_gradients(Stream& stream, const AttentionProblem& p, const AttentionBackward& args) {
  const int64_t of_batch = p.key_gradient_bytes() / p.batch;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t first = b * p.apart_positions;
    const Tensor sum = args.keys.gradients.slice(first, first + p.keys());
    add(stream, sum, {static_cast<char*>(args.workspace.data) + b * of_batch, DType::bf16, sum.shape}, sum);
  }
}

}  // namespace

const FusedAttention::Planned& FusedAttention::find(const AttentionProblem& p) {
  if (const auto known = planned_.find(p); known != planned_.end()) return known->second;
  if (latched_) {
    fail<DeviceError>("attention",
                      "{} sequences of {} tokens were not planned with cuDNN before the first step", p.batch,
                      p.sequence);
  }
  AttentionGraph graph = describe(p);
  graph.deterministic = backward_ == Backward::deterministic;
  const size_t index = graphs_.add(graph);
  return planned_.emplace(p, Planned{std::move(graph), index}).first->second;
}

int64_t FusedAttention::workspace_bytes(const AttentionProblem& problem) {
  return gradient_bytes(problem) + graphs_.workspace_bytes(find(problem).index);
}

template <class Args>
void FusedAttention::run(Stream& stream, Pass pass, const Args& args) {
  const std::string_view op = pass == Pass::forward ? "attention_forward" : "attention_backward";
  if (args.qkv.dtype != DType::bf16)
    fail<ShapeError>(op, "qkv is {}, but cuDNN's attention needs bf16", describe(args.qkv));
  if (!args.document_start.empty())
    fail<ShapeError>(op, "cuDNN's attention does not support documents: use flash attention");
  const AttentionProblem problem = problem_of(pass, args.heads, args.batch, args.sequence, args.keys);
  const Planned& planned = find(problem);
  const int64_t gradients = gradient_bytes(problem),
                needed = gradients + graphs_.workspace_bytes(planned.index);
  if (args.workspace.bytes() < needed || (needed > 0 && args.workspace.dtype != DType::u8)) {
    fail<MemoryError>(op,
                      "workspace is {}, expected u8 with at least {} elements for cuDNN: "
                      "attention_workspace_bytes says how many",
                      describe(args.workspace), needed);
  }
  std::vector<void*> addresses;
  for (const AttentionGraph::Operand& o : planned.graph.operands) {
    addresses.push_back(address_of(o, args));
    if (reinterpret_cast<uintptr_t>(addresses.back()) % (o.dtype == DType::bf16 ? 16 : 4) != 0) {
      fail<ShapeError>(op, "{} is not aligned to 16 bytes, which cuDNN's kernels need", name_of(o.role));
    }
  }
  graphs_.run(stream, planned.index, addresses, static_cast<char*>(args.workspace.data) + gradients);
  if constexpr (requires { args.dqkv; }) {
    if (gradients > 0) add_gradients(stream, problem, args);
  }
}

void FusedAttention::forward(Stream& stream, const AttentionForward& args) {
  run(stream, Pass::forward, args);
}
void FusedAttention::backward(Stream& stream, const AttentionBackward& args) {
  run(stream, Pass::backward, args);
}

}  // namespace ottava::cuda
