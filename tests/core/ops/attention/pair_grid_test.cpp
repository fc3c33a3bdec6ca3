// Which blocks for_each_pair_grid() launches, and what AttentionShape::find() makes of them.
#include <algorithm>
#include <array>
#include <vector>

#include "core/ops/attention/flash_attention.cuh"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

using namespace ottava;
using namespace ottava::cuda;
using namespace ottava::test;

namespace {

constexpr int kQueriesOfTile = 32;

/// Counts what a block owns in [heads of all sequences, tiles]; a key head that is not the head's counts as
/// many.
__global__ void count_visit(AttentionShape shape, unsigned of_pair, int tiles, int32_t* visits) {
  int batch, kv_head, head;
  if (!shape.find(of_pair, batch, kv_head, head)) return;
  const int tile = shape.first_of_pair_block<kQueriesOfTile>() / kQueriesOfTile;
  const int heads = shape.kv_heads * static_cast<int>(of_pair);
  const bool fits = head / static_cast<int>(of_pair) == kv_head;
  atomicAdd(&visits[(batch * heads + head) * tiles + tile], fits ? 1 : 1000);
}

}  // namespace

TEST_CASE("attention's blocks own every head and tile once, however many pairs take turns") {
  constexpr int64_t kRows = 64, kPairBytes = kRows * 2 * 16 * 2;  // D = 16
  constexpr int64_t kTiles = 3;
  Stream stream = Stream::cuda(0);
  for (const auto& sizes : {std::array<int, 3>{1, 1, 1}, {1, 7, 2}, {3, 1, 4}, {5, 3, 1}}) {
    const int batch = sizes[0], kv_heads = sizes[1], of_pair = sizes[2];
    const int64_t pairs = batch * kv_heads;
    for (int64_t together :
         {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, pairs - 1, pairs, int64_t{100}}) {
      INFO("B " << batch << " key heads " << kv_heads << " heads of each " << of_pair << " together "
                << together);
      DeviceBuffer visits(stream, DType::i32, {pairs * of_pair * kTiles});
      visits.upload_as<int32_t>(std::vector<int32_t>(static_cast<size_t>(pairs * of_pair * kTiles), 0));
      AttentionShape shape{.kv_heads = kv_heads};
      int64_t groups = 0;
      const auto count = [&](dim3 grid) {
        // Of a group, no more pairs than fit.
        CHECK(grid.x <= std::max(together, int64_t{1}) * of_pair);
        groups += grid.z;
        launch("count_visit", stream, {.grid = grid, .block = 1}, count_visit, shape,
               static_cast<unsigned>(of_pair), static_cast<int>(kTiles), visits.tensor().data);
      };
      for_each_pair_grid<16>(shape, batch, kTiles, of_pair, kRows, count, together * kPairBytes);
      CHECK(groups == ceil_div(pairs, std::max(together, int64_t{1})));
      CHECK(visits.download_as<int32_t>() ==
            std::vector<int32_t>(static_cast<size_t>(pairs * of_pair * kTiles), 1));
    }
  }
}
