#pragma once

#include <array>
#include <string_view>

#include "models/llama/attention_layer.h"
#include "models/llama/feed_forward_layer.h"

namespace ottava {

/// What a block keeps from forward to backward.
struct LlamaBlockSaved {
  AttentionLayer::Saved attention;
  FeedForwardLayer::Saved feed_forward;
};

/// How the transfers of each linear layer of a block run.
struct BlockOverlap {
  Overlap wqkv = Overlap::bulk, wo = Overlap::bulk, w13 = Overlap::bulk, w2 = Overlap::bulk;
  bool operator==(const BlockOverlap&) const = default;
};

struct BlockLayer {
  std::string_view name, label;  ///< "wo", "attention.wo"
  Overlap BlockOverlap::*overlap;
};
inline constexpr std::array<BlockLayer, 4> kBlockLayers{{{"wqkv", "attention.wqkv", &BlockOverlap::wqkv},
                                                         {"wo", "attention.wo", &BlockOverlap::wo},
                                                         {"w13", "feed_forward.w13", &BlockOverlap::w13},
                                                         {"w2", "feed_forward.w2", &BlockOverlap::w2}}};

/// How a block's linear layers run.
struct LlamaBlockPieces {
  AttentionLayer::Pieces attention;
  FeedForwardLayer::Pieces feed_forward;
  void set(const BlockOverlap& overlap) {
    attention.wqkv_overlap = overlap.wqkv, attention.wo_overlap = overlap.wo;
    feed_forward.w13_overlap = overlap.w13, feed_forward.w2_overlap = overlap.w2;
  }
};

/// Pre-norm transformer block:  h = x + attention(norm(x));  out = h + w2(swiglu(w13(norm(h)))).
class LlamaBlock {
 public:
  LlamaBlock(const LlamaConfig& config, const LlamaBlockParameters& parameters, int tensor_parallel_size,
             LlamaBlockPieces pieces);

  /// Returns the stream [n,C] after the block. Fills `saved` with what backward needs, without what
  /// `recompute` says is made again.
  ResidualStream forward(const StepContext& context, const LlamaBatch& batch, ResidualStream in,
                         Recompute recompute, LlamaBlockSaved& saved) const;
  /// Takes the gradient of the stream [n,C] after the block and returns that before it, in the same memory
  /// unless weight gradients are deferred. Consumes `saved`. `before`: the last_linear() of the block before;
  /// null for the first.
  LinearOperand backward(const StepContext& context, const LlamaBatch& batch, LinearOperand dout,
                         LlamaBlockSaved saved, const Linear* before) const;
  /// The layer that reads `dout`, for its producer.
  const Linear& last_linear() const { return feed_forward_.last_linear(); }
  /// One pass without gradients, for a prompt (position 0) or a single token, that appends keys and values at
  /// `position`.
  ResidualStream generate(const StepContext& context, const LlamaBatch& batch, ResidualStream in,
                          const KeyValueCache& cache, int64_t position) const;

 private:
  void recompute(const StepContext& context, const LlamaBatch& batch, LlamaBlockSaved& saved) const;

  AttentionLayer attention_;
  FeedForwardLayer feed_forward_;
};

}  // namespace ottava
