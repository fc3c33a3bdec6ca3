#include "parallel/sharding/context_parallel.h"

#include <vector>

#include "core/cost.h"
#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr int64_t kBatch = 2, kChunk = 3;
constexpr AttentionHeads kHeads{4, 2, 8};

/// A number for every element of the qkv of whole sequences, small enough that f32 sums over several ranks
/// are exact.
float value_of(int64_t b, int64_t position, int64_t column) {
  return static_cast<float>(1 + column + kHeads.row() * (position + 1000 * b));
}

void expect(bool holds, const char* what) {
  if (!holds) fail<Error>("test", "{}", what);
}

void round_trip(Communicator& world) {
  const ContextParallelGroup group(world);
  const int64_t ranks = world.size(), sequence = 2 * ranks * kChunk, rows = 2 * kBatch * kChunk;
  Stream stream = Stream::cpu();
  const auto go = [&](Stream& on, Arena& arena, const Tensor& qkv, const Tensor& dqkv) {
    Arena::Phase phase(arena, "pass");
    for (int64_t first = 0; first < kHeads.kv_heads; ++first) {
      const ContextParallelGroup::KeyHeads which{kHeads, first, 1};
      auto gathering = group.gather_keys_values(on, arena, qkv, which);
      Allocation values = group.in_order(on, arena, std::move(gathering), kBatch);
      if (on.type() == DeviceType::cpu) {
        const auto* got = values.tensor().as<float>();
        for (int64_t b = 0; b < kBatch; ++b) {
          for (int64_t p = 0; p < sequence; ++p) {
            for (int64_t i = 0; i < 16; ++i, ++got) {
              const int64_t head = kHeads.heads + first + (i < 8 ? 0 : kHeads.kv_heads);
              expect(*got == value_of(b, p, head * 8 + i % 8), "keys and values in order of position");
            }
          }
        }
      }
      // Every rank's share of the gradient is its keys and values times rank + 1.
      Allocation gradients =
          arena.allocate("gradients", DType::f32, values.tensor().shape, MemoryCategory::scratch);
      if (on.type() == DeviceType::cpu) {
        for (int64_t i = 0; i < gradients.tensor().numel(); ++i)
          gradients.tensor().as<float>()[i] =
              values.tensor().as<float>()[i] * static_cast<float>(group.rank() + 1);
      }
      auto scattering = group.scatter_key_value_gradients(on, arena, std::move(gradients), kBatch);
      group.finish(on, std::move(scattering), dqkv, which);
    }
  };
  CostRecorder recorder;
  Stream meta = Stream::meta(recorder, Device{});
  Arena recording;
  const Shape shape{rows, kHeads.row()};
  go(meta, recording, {nullptr, DType::f32, shape}, {nullptr, DType::f32, shape});

  DeviceBuffer qkv(stream, DType::f32, shape), dqkv(stream, DType::f32, shape);
  const auto each = [&](auto&& body) {
    for (int half = 0; half < 2; ++half) {
      for (int64_t i = 0; i < kBatch * kChunk; ++i) {
        for (int64_t column = 0; column < kHeads.row(); ++column) {
          const int64_t at = (half * kBatch * kChunk + i) * kHeads.row() + column,
                        position = group.chunk_of(half) * kChunk + i % kChunk;
          body(at, column, value_of(i / kChunk, position, column));
        }
      }
    }
  };
  each([&](int64_t at, int64_t, float value) { qkv.tensor().as<float>()[at] = value; });
  Arena arena(recording.plan(), {});
  go(stream, arena, qkv, dqkv);
  const auto times = static_cast<float>(ranks * (ranks + 1) / 2);
  each([&](int64_t at, int64_t column, float value) {
    if (column < kHeads.heads * kHeads.head_dim) return;
    expect(dqkv.tensor().as<float>()[at] == value * times, "this rank's rows of the sums");
  });
}

}  // namespace

TEST_CASE("keys and values are gathered in order of position, and their gradients come back") {
  for (const int ranks : {2, 3, 4}) {
    INFO(ranks << " ranks");
    CHECK_NOTHROW(run_thread_ranks({.ranks = ranks, .timeout_seconds = 60}, round_trip));
  }
}

TEST_CASE("chunks of a sequence are dealt head and tail") {
  CHECK(ContextParallelGroup().chunk_of(0) == 0);
  std::vector<int> owners(8, -1);
  run_thread_ranks({.ranks = 4}, [&](Communicator& world) {
    const ContextParallelGroup group(world);
    for (int half : {0, 1}) owners[static_cast<size_t>(group.chunk_of(half))] = group.rank();
  });
  CHECK(owners == std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0});
}
