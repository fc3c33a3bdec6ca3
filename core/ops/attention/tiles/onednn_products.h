#pragma once

#include <vector>

#include "core/ops/attention/tiles/tile_products.h"

namespace ottava::cpu {

/// Products by oneDNN's single-threaded primitives in bf16, one for each shape that occurs. A tile is
/// multiplied as a whole.
class OnednnProducts final : public StepwiseProducts {
 public:
  OnednnProducts(const AttentionTiling& tiling, Pass pass, MatmulCache* cache);

  int64_t packed_bytes(Operand, int64_t count) const override {
    return t_.tile_bytes(count * t_.heads.head_dim);
  }
  void pack(Operand, const void* from, int64_t stride, int64_t count, char* to) const override {
    kernels_.copy.bf16(from, stride, to, {0, count, t_.heads.head_dim});
  }
  bool packs_alike(Operand, Operand) const override { return true; }
  void columns(int lane, const ScoreTile& tile, const void* p, const char* b, float* c,
               void* scratch) const override;
  const float* rows_of_columns(const float* c, int64_t, float*) const override { return c; }

 protected:
  void scores(int lane, const ScoreTile& tile, const char* a, const char* b, float* scores,
              void* scratch) const override;
  void rows(int lane, const ScoreTile& tile, const void* p, const char* b, int64_t all, float* c,
            void* scratch) const override;

 private:
  struct Gemms {
    int64_t queries = 0, keys = 0;
    const Gemm *scores = nullptr, *rows = nullptr, *columns = nullptr;
  };
  const Gemms& at(const ScoreTile& tile) const;

  std::vector<Gemms> gemms_;
};

}  // namespace ottava::cpu
