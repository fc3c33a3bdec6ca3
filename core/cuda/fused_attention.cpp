#include "core/cuda/fused_attention.h"

#include "core/error.h"
#include "core/ops/check.h"

namespace ottava::cuda {

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
  return graphs_.workspace_bytes(find(problem).index);
}

template <class Args>
void FusedAttention::run(Stream& stream, Pass pass, const Args& args) {
  const std::string_view op = pass == Pass::forward ? "attention_forward" : "attention_backward";
  if (args.qkv.dtype != DType::bf16)
    fail<ShapeError>(op, "qkv is {}, and cuDNN's attention is bf16", describe(args.qkv));
  if (!args.keys.empty()) fail<ShapeError>(op, "cuDNN's attention has no separate keys: use flash attention");
  if (!args.document_start.empty())
    fail<ShapeError>(op, "cuDNN's attention has no documents: use flash attention");
  const Planned& planned =
      find({.pass = pass, .heads = args.heads, .batch = args.batch, .sequence = args.sequence});
  const int64_t needed = graphs_.workspace_bytes(planned.index);
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
  graphs_.run(stream, planned.index, addresses, args.workspace.data);
}

void FusedAttention::forward(Stream& stream, const AttentionForward& args) {
  run(stream, Pass::forward, args);
}
void FusedAttention::backward(Stream& stream, const AttentionBackward& args) {
  run(stream, Pass::backward, args);
}

}  // namespace ottava::cuda
