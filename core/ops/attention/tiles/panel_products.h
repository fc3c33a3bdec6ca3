#pragma once

#include "core/ops/attention/tiles/tile_products.h"

namespace ottava::cpu {

/// Products by core/cpu/panel_product.h, in f32. Skips what the diagonal hides. In forward a part lies
/// transposed, a vector for sixteen queries: softmax then needs no sums or maxima across a vector.
class PanelProducts final : public StepwiseProducts {
 public:
  PanelProducts(const AttentionTiling& tiling, Pass pass);

  int64_t packed_bytes(Operand operand, int64_t count) const override;
  void pack(Operand operand, const void* from, int64_t stride, int64_t count, char* to) const override;
  bool packs_alike(Operand one, Operand other) const override;
  void attend(int lane, const SoftmaxTile& tile, const PartOperands& operands, void* scratch) const override;
  float* rows_of_sums(float* sums, int64_t rows, float* to) const override;
  void columns(int lane, const ScoreTile& tile, const void* p, const char* b, float* c,
               void* scratch) const override;

 protected:
  void scores(int lane, const ScoreTile& tile, const char* a, const char* b, float* scores,
              void* scratch) const override;
  void rows(int lane, const ScoreTile& tile, const void* p, const char* b, int64_t all, float* c,
            void* scratch) const override;

 private:
  /// So few rows, and in forward keys, that their scores stay in the L1 cache.
  static constexpr int64_t kPartRows = 14, kPartKeys = 128;

  /// Whether an operand's rows are packed one after the other, in no panels: as the A of scores, as what
  /// columns() sums, and as the B of sums if a row is half as long as a panel's.
  bool lies_as_rows(Operand operand) const;

  Pass pass_;
};

}  // namespace ottava::cpu
