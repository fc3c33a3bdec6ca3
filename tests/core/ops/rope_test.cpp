#include "core/ops/rope.h"

#include <array>
#include <cstring>

#include "core/cost.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

std::vector<float> table_of(int64_t positions, int64_t head_dim, double theta = 10000) {
  std::vector<float> table(static_cast<size_t>(positions * head_dim));
  fill_rope_table(table.data(), positions, head_dim, theta, {});
  return table;
}

struct Expected {
  std::vector<double> value, size;
};
// Straight from the definition: complex multiplication of the pairs (x[i], x[i + D/2]).
Expected reference(const std::vector<float>& qkv, const std::vector<float>& table,
                   const AttentionHeads& heads, const std::vector<int32_t>& positions, bool inverse) {
  Expected r{as_double(qkv), as_double(qkv)};
  const int64_t dim = heads.head_dim, half = dim / 2;
  for (size_t n = 0; n < positions.size(); ++n) {
    for (int64_t h = 0; h < heads.heads + heads.kv_heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        size_t at = n * static_cast<size_t>(heads.row()) + static_cast<size_t>(h * dim + i),
               other = at + static_cast<size_t>(half);
        size_t cell = static_cast<size_t>(positions[n] * dim + i);
        double a = qkv[at], b = qkv[other], cos = table[cell],
               sin = table[cell + static_cast<size_t>(half)] * (inverse ? -1 : 1);
        r.value[at] = a * cos - b * sin;
        r.value[other] = b * cos + a * sin;
        r.size[at] = std::abs(a * cos) + std::abs(b * sin);
        r.size[other] = std::abs(b * cos) + std::abs(a * sin);
      }
    }
  }
  return r;
}

const AttentionHeads kHeads[] = {{1, 1, 2}, {4, 2, 16}, {3, 1, 24}, {2, 2, 64}, {2, 1, 128}, {12, 4, 128}};
constexpr int64_t kRows = 12, kSequence = 5;

std::vector<int32_t> plain_positions() {
  std::vector<int32_t> positions;
  for (int64_t n = 0; n < kRows; ++n) positions.push_back(static_cast<int32_t>(n % kSequence));
  return positions;
}

}  // namespace

TEST_CASE("rope: the table holds cos and sin of position * theta^(-2i/D)") {
  const int64_t dim = 64, positions = 70;
  auto table = table_of(positions, dim, 500000);
  std::vector<double> want(table.size());
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < dim / 2; ++i) {
      double angle = static_cast<double>(p) / std::pow(500000.0, static_cast<double>(2 * i) / dim);
      want[static_cast<size_t>(p * dim + i)] = std::cos(angle);
      want[static_cast<size_t>(p * dim + dim / 2 + i)] = std::sin(angle);
    }
  }
  check_close(table, want, {.stored = unit_roundoff(DType::f32), .arithmetic = 1e-12},
              std::vector<double>(want.size(), 100));
}

TEST_CASE("rope: Llama 3.1 scaling keeps short waves, divides long ones by 8 and blends between") {
  // theta 500000, D 128: pair 0 has wavelength 6.28, pair 63 2.56e6; pair 30 has f = 500000^(-60/128) =
  // 2.13112e-3, wavelength 2948.30 and s = (8192/2948.30 - 1)/3 = 0.592849, so f' = 0.407151 f/8 + 0.592849 f
  // = 0.643743 f.
  const int64_t dim = 128;
  std::vector<float> plain(2 * dim), scaled(2 * dim);
  fill_rope_table(plain.data(), 2, dim, 500000, {});
  fill_rope_table(scaled.data(), 2, dim, 500000, RopeScaling{});
  auto angle = [&](const std::vector<float>& table, size_t i) {
    return std::atan2(table[static_cast<size_t>(dim) + 64 + i], table[static_cast<size_t>(dim) + i]);
  };
  CHECK(angle(scaled, 0) == angle(plain, 0));
  CHECK(angle(scaled, 28) == angle(plain, 28));  // wavelength 1956 < 2048
  CHECK(angle(scaled, 30) / angle(plain, 30) == Approx(0.643743).epsilon(2e-6));
  CHECK(angle(scaled, 36) / angle(plain, 36) == Approx(1.0 / 8).epsilon(1e-5));  // wavelength 10089 > 8192
  CHECK(angle(scaled, 63) / angle(plain, 63) == Approx(1.0 / 8).epsilon(1e-5));
}

TEST_CASE("rope: YaRN keeps what turns often, divides what turns seldom, and makes all of them larger") {
  // theta 10000, D 16, original 4096: a pair that turns r times is 16 ln(4096 / 2 pi r) / (2 ln 10000), 2.616
  // for 32 and 5.626 for 1, so that the ramp goes from pair 2 to pair 6: 1/4 of the way for 3, half for 4.
  const int64_t dim = 16;
  std::vector<float> plain(2 * dim), scaled(2 * dim), linear(2 * dim);
  const RopeScaling yarn{
      .type = RopeScaling::Type::yarn, .factor = 4, .original_max_position_embeddings = 4096};
  fill_rope_table(plain.data(), 2, dim, 10000, {});
  fill_rope_table(scaled.data(), 2, dim, 10000, yarn);
  fill_rope_table(linear.data(), 2, dim, 10000, RopeScaling{.type = RopeScaling::Type::linear, .factor = 4});
  const auto ratio = [&](const std::vector<float>& table, size_t i) {
    const auto angle = [&](const std::vector<float>& of) { return std::atan2(of[24 + i], of[16 + i]); };
    return angle(table) / angle(plain);
  };
  const double kept[] = {1, 1, 1, 0.75, 0.5, 0.25, 0, 0};
  for (size_t i = 0; i < 8; ++i) {
    CHECK(ratio(scaled, i) == Approx(kept[i] + (1 - kept[i]) / 4).epsilon(2e-6));
    CHECK(ratio(linear, i) == Approx(0.25).epsilon(2e-6));
    CHECK(std::hypot(scaled[24 + i], scaled[16 + i]) == Approx(1 + 0.1 * std::log(4.0)).epsilon(1e-6));
  }
  CHECK(attention_factor_of(yarn) == Approx(1.1386294));
}

TEST_CASE("rope: a table that cannot be is refused") {
  float table[8];
  CHECK_THROWS_WITH(fill_rope_table(table, 1, 7, 1e4, {}),
                    "[rope] head dimension is 7, expected an even number: it is rotated in pairs");
  CHECK_THROWS_WITH(fill_rope_table(table, 1, 8, 0, {}), "[rope] theta is 0, expected a positive number");
  RopeScaling scaling{.low_freq_factor = 4, .high_freq_factor = 4};
  CHECK_THROWS_WITH(fill_rope_table(table, 1, 8, 1e4, scaling),
                    "[rope] scaling: high_freq_factor is 4, expected more than low_freq_factor 4");
  CHECK_THROWS_WITH(fill_rope_table(table, 1, 8, 1e4, RopeScaling{.factor = -1}),
                    "[rope] scaling: factor is -1, expected more than 0");
  scaling = {.type = RopeScaling::Type::yarn, .beta_fast = 1, .beta_slow = 2};
  CHECK_THROWS_WITH(fill_rope_table(table, 1, 8, 1e4, scaling),
                    "[rope] scaling: beta_fast is 1, expected at least beta_slow 2");
  scaling.beta_slow = 1;
  CHECK_THROWS_WITH(fill_rope_table(table, 1, 8, 1, scaling),
                    "[rope] scaling: rope_theta is 1, expected more than 1 where the rope type is yarn");
}

TEST_CASE("rope rotates query and key heads and leaves the values alone") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const AttentionHeads& heads : kHeads) {
      for (bool inverse : {false, true}) {
        for (bool given : {false, true}) {
          INFO("head dim " << heads.head_dim << " inverse " << inverse << " positions given " << given);
          auto table = table_of(kSequence + 3, heads.head_dim);
          auto qkv = normal_values(kRows * heads.row(), 1, dtype);
          std::vector<int32_t> positions = plain_positions();
          if (given) positions = {0, 1, 2, 0, 1, 7, 0, 3, 3, 6, 5, 4};
          DeviceBuffer qkv_NR(stream, dtype, {kRows, heads.row()}, qkv),
              table_PD(stream, DType::f32, {kSequence + 3, heads.head_dim}, table),
              positions_N(stream, DType::i32, {kRows});
          positions_N.upload_as<int32_t>(positions);
          Rope args{
              .qkv = qkv_NR, .table = table_PD, .heads = heads, .sequence = kSequence, .inverse = inverse};
          if (given) args.positions = positions_N;
          rope(stream, args);
          Expected want = reference(qkv, table, heads, positions, inverse);
          auto got = qkv_NR.floats();
          check_close(got, want.value, tolerance(dtype, 3), want.size);
          const size_t value_heads = static_cast<size_t>((heads.heads + heads.kv_heads) * heads.head_dim);
          for (size_t row = 0; row < got.size(); row += static_cast<size_t>(heads.row())) {
            CHECK(std::equal(got.begin() + static_cast<std::ptrdiff_t>(row + value_heads),
                             got.begin() + static_cast<std::ptrdiff_t>(row) + heads.row(),
                             qkv.begin() + static_cast<std::ptrdiff_t>(row + value_heads)));
          }
        }
      }
    }
  });
}

TEST_CASE("rope's amax is that of the whole row as stored, value heads too, and changes no bit") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const AttentionHeads& heads : kHeads) {
      // The largest lies in a rotated head, in a value head, or was there before.
      for (int where : {0, 1, 2}) {
        INFO("head dim " << heads.head_dim << ", largest " << where);
        auto qkv = normal_values(kRows * heads.row(), 5, dtype);
        if (where == 1) qkv[static_cast<size_t>(4 * heads.row() - 1)] = -64;
        const uint32_t before = where == 2 ? 0x7fc00000u : 0;
        DeviceBuffer with(stream, dtype, {kRows, heads.row()}, qkv),
            without(stream, dtype, {kRows, heads.row()}, qkv),
            table(stream, DType::f32, {kSequence, heads.head_dim}, table_of(kSequence, heads.head_dim)),
            amax(stream, DType::u32, {1});
        amax.upload_as<uint32_t>(std::array{before});
        const Rope args{.qkv = with,
                        .table = table,
                        .heads = heads,
                        .sequence = kSequence,
                        .inverse = true,
                        .amax = amax};
        Rope plain = args;
        plain.qkv = without, plain.amax = {};
        rope(stream, args);
        rope(stream, plain);
        const auto got = with.floats(), want = without.floats();
        CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
        CHECK(amax.download_as<uint32_t>()[0] == std::max(before, largest_bits(got)));
      }
    }
  });
}

TEST_CASE("rope: the inverse rotation is rope's backward: <dy, R x> = <R^-1 dy, x>") {
  for_each_device([](Stream& stream) {
    for (const AttentionHeads& heads : kHeads) {
      INFO("head dim " << heads.head_dim);
      const Shape shape{kRows, heads.row()};
      auto x = normal_values(shape.numel(), 1), dy = normal_values(shape.numel(), 2);
      DeviceBuffer table(stream, DType::f32, {kSequence, heads.head_dim},
                         table_of(kSequence, heads.head_dim)),
          x_NR(stream, DType::f32, shape, x), dy_NR(stream, DType::f32, shape, dy);
      rope(stream, {.qkv = x_NR, .table = table, .heads = heads, .sequence = kSequence});
      rope(stream, {.qkv = dy_NR, .table = table, .heads = heads, .sequence = kSequence, .inverse = true});
      double size = 0;
      for (size_t i = 0; i < x.size(); ++i) size += 2 * std::abs(x[i]) * std::abs(dy[i]) + 2;
      CHECK(std::abs(dot(as_double(dy), as_double(x_NR.floats())) -
                     dot(as_double(dy_NR.floats()), as_double(x))) <= 6 * unit_roundoff(DType::f32) * size);
    }
  });
}

TEST_CASE("rope is bitwise the same for any number of threads") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const AttentionHeads heads{2, 1, 64};
    const int64_t rows = 101;
    DeviceBuffer table(stream, DType::f32, {10, 64}, table_of(10, 64)),
        qkv(stream, dtype, {rows, heads.row()});
    std::vector<float> first;
    for_each_thread_count([&](int) {
      qkv.upload(normal_values(rows * heads.row(), 1));
      rope(stream, {.qkv = qkv, .table = table, .heads = heads, .sequence = 10});
      if (first.empty()) first = qkv.floats();
      CHECK(qkv.floats() == first);
    });
  });
}

TEST_CASE("rope on meta records the bytes of query and key heads only") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  AttentionHeads heads{4, 2, 16};
  rope(stream, {.qkv = shape_only(DType::bf16, {6, heads.row()}),
                .table = shape_only(DType::f32, {3, 16}),
                .heads = heads,
                .sequence = 3});
  CHECK(recorder.bytes() == 2 * 6 * (4 + 2) * 16 * 2);
  recorder.clear();
  rope(stream, {.qkv = shape_only(DType::bf16, {6, heads.row()}),
                .table = shape_only(DType::f32, {3, 16}),
                .heads = heads,
                .sequence = 3,
                .amax = shape_only(DType::u32, {1})});
  CHECK(recorder.bytes() == 6 * (2 * (4 + 2) + 2) * 16 * 2);
}

TEST_CASE("rope refuses tensors that do not fit, and says which") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const AttentionHeads heads{4, 2, 16};
  const Rope good{.qkv = shape_only(DType::bf16, {6, 128}),
                  .table = shape_only(DType::f32, {3, 16}),
                  .positions = shape_only(DType::i32, {6}),
                  .heads = heads,
                  .sequence = 3};
  rope(stream, good);
  auto says = [&](auto&& change, const std::string& message) {
    Rope args = good;
    change(args);
    CHECK_THROWS_WITH(rope(stream, args), "[rope] " + message);
  };
  says([](auto& a) { a.amax = shape_only(DType::u32, {2}); }, "amax is u32 [2], expected u32 [1]");
  says([](auto& a) { a.qkv.dtype = DType::i32; }, "qkv is i32 [6, 128], expected f32 or bf16");
  says([](auto& a) { a.qkv.shape = {6, 96}; }, "qkv is bf16 [6, 96], expected bf16 [6, 128]");
  says([](auto& a) { a.heads.head_dim = 15; },
       "4 heads, 2 key-value heads of dimension 15: expected an even dimension");
  says([](auto& a) { a.table.shape = {3, 8}; }, "table is f32 [3, 8], expected f32 [positions, 16]");
  says([](auto& a) { a.positions.shape = {5}; }, "positions is i32 [5], expected i32 [6]");
  says(
      [](auto& a) {
        a.positions = {};
        a.sequence = 4;
      },
      "sequence is 4, expected 1 to the table's 3 positions");
}
