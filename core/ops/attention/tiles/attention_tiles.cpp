#include "core/ops/attention/tiles/attention_tiles.h"

#include <bit>

#include "core/ops/attention/tiles/pair_kernels.h"
#include "core/ops/attention/tiles/tile_products.h"
#include "core/threads/parallel_for.h"

namespace ottava::cpu {
namespace {

// 128 rows keep the wasted upper half of the diagonal's tiles small; 256 keys spread each row's bookkeeping
// over 16 vectors. Scores and their gradients are 2 x 128 KiB: an L2 cache of 512 KiB holds a tile's work.
// Measured flat around this choice: 64 rows cost 15%, 256 rows or 512 keys gain at most 10% at head dimension
// 128 and nothing below.
constexpr int64_t kRows = 128, kKeys = 256, kFewestQueries = 16;

AttentionTiling::Multiplier multiplier_of(Bf16Products products, DType dtype, int64_t head_dim) {
  using enum AttentionTiling::Multiplier;
  if (dtype != DType::bf16 || products == Bf16Products::widened) return panels;
  return pair_attention_kernels() && head_dim % 16 == 0 ? pairs : onednn;
}

}  // namespace

AttentionTiling::AttentionTiling(Bf16Products products, DType dtype, AttentionHeads heads, int64_t batch,
                                 int64_t sequence, const SeparateKeys& apart)
    : dtype(dtype),
      multiplier(multiplier_of(products, dtype, heads.head_dim)),
      tile(multiplier == Multiplier::panels ? DType::f32 : DType::bf16),
      heads(heads),
      batch(batch),
      sequence(sequence),
      first_query(apart.first_query),
      key_sequence(apart.empty() ? sequence : apart.values.rows() / batch),
      first_kv(apart.first_head),
      kv_heads(apart.empty() ? heads.kv_heads : apart.values.cols() / (2 * heads.head_dim)),
      group(heads.heads / heads.kv_heads),
      // A power of two, so that few shapes occur at the diagonal.
      queries(std::max(
          multiplier == Multiplier::onednn ? kFewestQueries : kPanelColumns,
          static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(kRows / group, 1)))))),
      keys(kKeys),
      lanes(parallel_threads()) {}

int64_t AttentionTiling::pairs_together() const {
  constexpr int64_t kLine = 64, kTasksPerThread = 4;
  const int64_t together = std::max<int64_t>(kLine / (heads.head_dim * size_of(dtype)), 1);
  return kv_heads % together == 0 && pairs() >= kTasksPerThread * together * lanes ? together : 1;
}

char* attention_workspace(std::string_view op, const Tensor& workspace, int64_t bytes) {
  if (workspace.dtype != DType::u8 || workspace.empty() || workspace.bytes() < bytes) {
    fail<MemoryError>(
        op, "workspace is {}, expected u8 with at least {} elements: attention_workspace_bytes says how many",
        describe(workspace), bytes);
  }
  if (reinterpret_cast<uintptr_t>(workspace.data) % 64 != 0) {
    fail<MemoryError>(op, "workspace at {} is not aligned to 64 bytes", workspace.data);
  }
  return static_cast<char*>(workspace.data);
}

int64_t attention_workspace_bytes(Bf16Products products, Pass pass, DType dtype, AttentionHeads heads,
                                  int64_t batch, int64_t sequence, const SeparateKeys& keys) {
  const AttentionTiling t(products, dtype, heads, batch, sequence, keys);
  const auto tiles = TileProducts::make(t, pass, nullptr);
  return pass == Pass::forward ? forward_workspace_bytes(t, *tiles) : backward_workspace_bytes(t, *tiles);
}

}  // namespace ottava::cpu
