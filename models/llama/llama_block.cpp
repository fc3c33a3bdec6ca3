#include "models/llama/llama_block.h"

#include <utility>

namespace ottava {

LlamaBlock::LlamaBlock(const LlamaConfig& config, const LlamaBlockParameters& parameters, int tp,
                       LlamaBlockPieces pieces)
    : attention_(config, parameters, tp, std::move(pieces.attention)),
      feed_forward_(config, parameters, tp, std::move(pieces.feed_forward)) {}

ResidualStream LlamaBlock::forward(const StepContext& c, const LlamaBatch& batch, ResidualStream in,
                                   Recompute recompute, LlamaBlockSaved& saved) const {
  ResidualStream middle = attention_.forward(c, batch, std::move(in), recompute, saved.attention);
  ResidualStream out = feed_forward_.forward(c, std::move(middle), recompute, saved.feed_forward);
  if (recomputes_products(recompute)) {
    saved.attention.drop_all_but_input(recompute == Recompute::all_but_attention);
    saved.feed_forward = {};
  }
  return out;
}

void LlamaBlock::recompute(const StepContext& c, const LlamaBatch& batch, LlamaBlockSaved& saved) const {
  ResidualStream middle =
      attention_.forward(c, batch, {saved.attention.norm.x, {}}, Recompute::elementwise, saved.attention);
  feed_forward_.recompute(c, std::move(middle), saved.feed_forward);
}

LinearOperand LlamaBlock::backward(const StepContext& c, const LlamaBatch& batch, LinearOperand dout,
                                   LlamaBlockSaved saved, const Linear* before) const {
  if (!saved.attention.qkv) recompute(c.recomputing(), batch, saved);
  LinearOperand dh = feed_forward_.backward(c, std::move(dout), saved.feed_forward, attention_.last_linear());
  return attention_.backward(c, batch, std::move(dh), saved.attention, before);
}

ResidualStream LlamaBlock::generate(const StepContext& c, const LlamaBatch& batch, ResidualStream in,
                                    const KeyValueCache& cache, int64_t position) const {
  ResidualStream middle = attention_.generate(c, batch, std::move(in), cache, position);
  FeedForwardLayer::Saved dropped;
  return feed_forward_.forward(c, std::move(middle), Recompute::block, dropped);
}

}  // namespace ottava
