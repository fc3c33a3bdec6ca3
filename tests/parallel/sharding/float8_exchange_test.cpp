#include "parallel/sharding/float8_exchange.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "core/cost.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;

namespace {

constexpr int64_t kRows = 48, kColumns = 256;

/// Gradients whose size differs from row to row by orders of magnitude, as real ones do.
std::vector<float> gradient_of(int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 3);
  std::normal_distribution<float> normal;
  std::vector<float> g(kRows * kColumns);
  for (size_t i = 0; i < g.size(); ++i)
    g[i] = normal(random) * std::ldexp(1.0f, static_cast<int>(i / kColumns) % 24 - 20);
  return g;
}

struct Result {
  std::vector<float> sum;  ///< all shards in rank order
  std::vector<uint32_t> flags;
};
Result exchange(int ranks, const std::function<void(int, std::vector<float>&)>& change = {},
                bool accumulate = false) {
  Result result{std::vector<float>(kRows * kColumns), std::vector<uint32_t>(static_cast<size_t>(ranks))};
  test::run_thread_ranks({.ranks = ranks, .timeout_seconds = 60}, [&](Communicator& world) {
    const int rank = world.rank();
    std::vector<float> g = gradient_of(rank);
    if (change) change(rank, g);
    Stream stream = Stream::cpu();
    auto step = [&](Stream& s, Arena& arena, const Tensor& gradient, const Tensor& shard,
                    const Tensor& flag) {
      Arena::Phase phase(arena, "step");
      Float8Exchange e(s, arena, "w", gradient, ranks, flag);
      Group group(world);
      e.start(s, world, "w");
      group.end().wait(s);
      e.finish(s, arena, shard, accumulate);
    };
    CostRecorder recorder;
    Stream meta = Stream::meta(recorder, {DeviceType::cpu, 0});
    Arena recording;
    const int64_t rows = kRows / ranks;
    step(meta, recording, {nullptr, DType::f32, {kRows, kColumns}}, {nullptr, DType::f32, {rows, kColumns}},
         {nullptr, DType::u32, {1}});
    Arena arena(recording.plan(), {DeviceType::cpu, 0});
    float* shard = result.sum.data() + rank * rows * kColumns;
    if (accumulate) std::fill_n(shard, rows * kColumns, 1.0f);
    step(stream, arena, view_of(g.data(), {kRows, kColumns}), view_of(shard, {rows, kColumns}),
         view_of(&result.flags[static_cast<size_t>(rank)], {1}));
  });
  return result;
}

}  // namespace

TEST_CASE("float8 exchange: the sum is f32's to 3% of its norm, row by row") {
  for (int ranks : {2, 4, 8}) {
    const Result got = exchange(ranks);
    std::vector<double> want(kRows * kColumns, 0.0);
    for (int r = 0; r < ranks; ++r) {
      const std::vector<float> g = gradient_of(r);
      for (size_t i = 0; i < want.size(); ++i) want[i] += g[i];
    }
    // Scales are of 128 elements: small rows are as exact as large ones, but for what few elements leave to
    // chance.
    double whole_error = 0, whole_norm = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      double error = 0, norm = 0;
      for (auto i = static_cast<size_t>(row * kColumns); i < static_cast<size_t>((row + 1) * kColumns); ++i) {
        error += (got.sum[i] - want[i]) * (got.sum[i] - want[i]);
        norm += want[i] * want[i];
      }
      CHECK(std::sqrt(error / norm) < 0.035);
      CHECK(error > 0);
      whole_error += error;
      whole_norm += norm;
    }
    CHECK(std::sqrt(whole_error / whole_norm) < 0.03);
    for (uint32_t flag : got.flags) CHECK(flag == 0);
    CHECK(exchange(ranks).sum == got.sum);
  }
}

TEST_CASE("float8 exchange: adds to what a shard holds") {
  const Result fresh = exchange(4), added = exchange(4, {}, true);
  for (size_t i = 0; i < fresh.sum.size(); ++i)
    REQUIRE(added.sum[i] == Approx(fresh.sum[i] + 1).margin(1e-5));
}

TEST_CASE("float8 exchange: an infinity or a NaN raises the flag of the rank that has it") {
  const Result got = exchange(4, [](int rank, std::vector<float>& g) {
    if (rank == 1) g[700] = INFINITY;
    if (rank == 3) g[9] = NAN;
  });
  CHECK(got.flags == std::vector<uint32_t>{0, 1, 0, 1});
}

TEST_CASE("float8 exchange: takes matrices of linear layers that split into whole rows of 128") {
  const ParameterSpec linear{.role = ParameterRole::linear}, output{.role = ParameterRole::output};
  CHECK(Float8Exchange::takes(linear, {64, 256}, 4));
  CHECK_FALSE(Float8Exchange::takes(linear, {66, 256}, 4));
  CHECK_FALSE(Float8Exchange::takes(linear, {4, 16}, 4));
  CHECK_FALSE(Float8Exchange::takes(output, {64, 256}, 4));
}
