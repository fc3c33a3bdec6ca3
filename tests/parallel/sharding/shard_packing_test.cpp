#include "parallel/sharding/shard_packing.h"

#include <numeric>

#include "core/cost.h"
#include "core/ops/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

using namespace ottava;
using test::DeviceBuffer;

namespace {

const std::vector<ShardPacking::Item> kItems{{{10, 3}, 1}, {{7}, 1}, {{8, 5}, 4}, {{64}, 1}};

std::vector<float> numbers(int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 1.0f);
  return out;
}

}  // namespace

TEST_CASE("every rank's rows lie in its segment, and come back from there") {
  for (const int shards : {1, 2, 3, 4, 8, 16, 100}) {
    const ShardPacking packing(kItems, shards);
    Stream stream = Stream::cpu();
    DeviceBuffer segments(stream, DType::f32, {shards * packing.segment_elements()});
    fill_zero(stream, segments);
    for (size_t i = 0; i < kItems.size(); ++i) {
      INFO("item " << i << " of " << shards);
      const Shape& slice = kItems[i].slice;
      const std::vector<float> values = numbers(slice.numel());
      DeviceBuffer whole(stream, DType::f32, slice, values), back(stream, DType::f32, slice);
      packing.pack(stream, whole, i, segments);
      packing.unpack(stream, segments, i, back);
      CHECK(back.floats() == values);
      std::vector<float> rows;
      for (int rank = 0; rank < shards; ++rank) {
        const Tensor segment = Tensor(segments).slice(rank * packing.segment_elements(),
                                                      (rank + 1) * packing.segment_elements());
        const Tensor shard = packing.shard_view(segment, i, rank);
        for (int64_t k = 0; k < shard.numel(); ++k) rows.push_back(shard.as<float>()[k]);
      }
      CHECK(rows == values);
    }
  }
}

TEST_CASE("segments begin at multiples of 16 bytes") {
  for (const int shards : {1, 2, 3, 6, 24, 100}) {
    INFO(shards << " shards");
    CHECK(ShardPacking(kItems, shards).segment_elements() * size_of(DType::bf16) % 16 == 0);
  }
}

TEST_CASE("packing asks for as many operations on many ranks as on few") {
  for (const int shards : {3, 65536}) {
    const ShardPacking packing(kItems, shards);
    CostRecorder recorder;
    Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
    const Tensor segments{nullptr, DType::f32, {shards * packing.segment_elements()}};
    for (size_t i = 0; i < kItems.size(); ++i) {
      const Tensor slice{nullptr, DType::f32, kItems[i].slice};
      packing.unpack(stream, segments, i, slice);
      packing.pack(stream, slice, i, segments);
    }
    CHECK(recorder.order().events.size() <= 4 * kItems.size());
  }
}
