#include "core/ops/attention/tiles/tile_products.h"

#include "core/ops/attention/tiles/onednn_products.h"
#include "core/ops/attention/tiles/pair_products.h"
#include "core/ops/attention/tiles/panel_products.h"

namespace ottava::cpu {

std::unique_ptr<const TileProducts> TileProducts::make(const AttentionTiling& t, Pass pass,
                                                       MatmulCache* cache) {
  switch (t.multiplier) {
    case AttentionTiling::Multiplier::panels:
      return std::make_unique<PanelProducts>(t, pass);
    case AttentionTiling::Multiplier::onednn:
      return std::make_unique<OnednnProducts>(t, pass, cache);
    case AttentionTiling::Multiplier::pairs:
      break;
  }
  return std::make_unique<PairProducts>(t);
}

const float* TileProducts::rows_of_columns(const float* c, int64_t keys, float* to) const {
  kernels_.transpose(c, t_.column_stride(), to, {0, keys, t_.heads.head_dim});
  return to;
}

void StepwiseProducts::attend(int lane, const SoftmaxTile& tile, const PartOperands& of,
                              void* scratch) const {
  scores(lane, tile.tile, of.q, of.k, tile.tile.scores, scratch);
  kernels_.softmax(tile);
  rows(lane, tile.tile, tile.probabilities, of.right, of.all_keys, tile.sums, scratch);
}

void StepwiseProducts::differentiate(int lane, const GradientTile& tile, const PartOperands& of, float* dq,
                                     void* scratch) const {
  scores(lane, tile.tile, of.q, of.k, tile.tile.scores, scratch);
  scores(lane, tile.tile, of.dout, of.v, tile.dprobabilities, scratch);
  kernels_.gradient[t_.tile](tile);
  rows(lane, tile.tile, tile.dscores, of.right, of.all_keys, dq, scratch);
}

}  // namespace ottava::cpu
