#pragma once

#include "core/ops/attention/tiles/pair_kernels.h"
#include "core/ops/attention/tiles/tile_products.h"

namespace ottava::cpu {

/// Products by AMX or AVX512-BF16. Scores exist only for one part at a time.
class PairProducts final : public TileProducts {
 public:
  explicit PairProducts(const AttentionTiling& tiling);

  int64_t packed_bytes(Operand operand, int64_t count) const override;
  void pack(Operand operand, const void* from, int64_t stride, int64_t count, char* to) const override;
  bool packs_alike(Operand one, Operand other) const override { return one == other; }
  void attend(int lane, const SoftmaxTile& tile, const PartOperands& operands, void* scratch) const override;
  void differentiate(int lane, const GradientTile& tile, const PartOperands& operands, float* dq,
                     void* scratch) const override;
  void columns(int lane, const ScoreTile& tile, const void* p, const char* b, float* c,
               void* scratch) const override;

 protected:
  void begin_thread() const override { products_.begin_thread(); }
  void end_thread() const override { products_.end_thread(); }

 private:
  PairPart part_of(const PartOperands& operands, void* scratch) const;

  const PairProductKernels& products_;
  const PairAttentionKernels& attention_;
};

}  // namespace ottava::cpu
