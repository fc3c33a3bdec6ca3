#include "core/ops/elementwise.h"

#include <array>
#include <deque>

#include "core/cost.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

const int64_t kSizes[] = {1, 15, 16, 37, 1000, 70001};

// Values whose rounding is easy to get wrong: ties both ways, the largest numbers, denormals, infinities, NaN
// with a payload that truncation would turn into an infinity.
std::vector<float> awkward_values() {
  std::vector<float> values;
  for (uint32_t bits : {0x3f808000u, 0x3f818000u, 0x3f808001u, 0x3f807fffu, 0x7f7fffffu, 0x7f7f7fffu,
                        0x00000001u, 0x00008000u, 0x80018000u, 0x7f800000u, 0xff800000u, 0x7f800001u,
                        0xffc00001u, 0x00000000u, 0x80000000u}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

// Every NaN becomes one: the CPU keeps a NaN's sign and payload, GPUs make their own.
std::vector<uint16_t> with_one_nan(std::vector<uint16_t> bits) {
  for (uint16_t& b : bits) b = (b & 0x7fffu) > 0x7f80u ? uint16_t{0x7fc0} : b;
  return bits;
}
std::vector<uint16_t> bits_of(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float x : values) bits.push_back(bf16(x).bits);
  return with_one_nan(bits);
}

}  // namespace

TEST_CASE("elementwise: cast rounds to bf16 to nearest even and widens exactly") {
  for_each_device([](Stream& stream) {
    for (int64_t n : kSizes) {
      INFO("n " << n);
      auto values = normal_values(n, 1);
      auto awkward = awkward_values();
      std::copy_n(awkward.begin(), std::min<size_t>(awkward.size(), values.size()), values.begin());
      DeviceBuffer wide(stream, DType::f32, {n}, values), narrow(stream, DType::bf16, {n}),
          back(stream, DType::f32, {n});
      cast(stream, wide, narrow);
      CHECK(with_one_nan(narrow.download_as<uint16_t>()) == bits_of(values));
      cast(stream, narrow, back);
      CHECK(bits_of(back.floats()) == bits_of(values));
    }
  });
}

TEST_CASE("elementwise: copy, and cast between equal types, copy every byte") {
  for_each_device([](Stream& stream) {
    std::vector<int32_t> values(70001);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i * 2654435761u);
    Shape shape{70001};
    DeviceBuffer source(stream, DType::i32, shape), destination(stream, DType::i32, shape);
    source.upload_as<int32_t>(values);
    copy(stream, source, destination);
    CHECK(destination.download_as<int32_t>() == values);
    DeviceBuffer again(stream, DType::i32, shape);
    cast(stream, destination, again);
    CHECK(again.download_as<int32_t>() == values);
    auto nan = awkward_values();
    DeviceBuffer f32_source(stream, DType::f32, {15}, nan), f32_destination(stream, DType::f32, {15});
    cast(stream, f32_source, f32_destination);
    CHECK(f32_destination.download_as<uint32_t>() == f32_source.download_as<uint32_t>());
  });
}

TEST_CASE("elementwise: bf16 is added to f32 in f32, also in place") {
  for_each_device([](Stream& stream) {
    for (int64_t n : kSizes) {
      INFO("n " << n);
      const auto a = normal_values(n, 1), b = normal_values(n, 2, DType::bf16);
      DeviceBuffer sum(stream, DType::f32, {n}, a), addend(stream, DType::bf16, {n}, b);
      add(stream, sum, addend, sum);
      const std::vector<float> got = sum.floats();
      for (size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == a[i] + b[i]);
    }
  });
}

TEST_CASE("elementwise: fill_zero clears all bytes and no more") {
  for_each_device([](Stream& stream) {
    for (int64_t n : kSizes) {
      DeviceBuffer buffer(stream, DType::bf16, {n + 2});
      fill_zero(stream, buffer.tensor().slice(1, n + 1));
      auto bits = buffer.download_as<uint16_t>();
      CHECK(bits.front() == 0xffff);
      CHECK(bits.back() == 0xffff);
      CHECK(std::all_of(bits.begin() + 1, bits.end() - 1, [](uint16_t b) { return b == 0; }));
    }
  });
}

TEST_CASE("elementwise: add rounds once, in place too") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    auto stored = [&](float x) { return dtype == DType::bf16 ? static_cast<float>(bf16(x)) : x; };
    for (int64_t n : kSizes) {
      INFO("n " << n);
      auto a = normal_values(n, 1, dtype), b = normal_values(n, 2, dtype);
      std::vector<float> sum;
      for (size_t i = 0; i < a.size(); ++i) sum.push_back(stored(a[i] + b[i]));
      DeviceBuffer a_n(stream, dtype, {n}, a), b_n(stream, dtype, {n}, b), out(stream, dtype, {n});
      add(stream, a_n, b_n, out);
      CHECK(out.floats() == sum);
      add(stream, a_n, b_n, b_n);
      CHECK(b_n.floats() == sum);
    }
  });
}

TEST_CASE("elementwise: add_in_order adds from the first on and rounds once") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    auto stored = [&](float x) { return dtype == DType::bf16 ? static_cast<float>(bf16(x)) : x; };
    for (int64_t n : kSizes) {
      for (size_t count : {size_t{1}, size_t{2}, size_t{5}, kMostAddends}) {
        INFO(count << " x " << n);
        std::vector<std::vector<float>> values;
        std::deque<DeviceBuffer> buffers;
        AddInOrder args;
        for (size_t i = 0; i < count; ++i) {
          values.push_back(normal_values(n, i + 1, dtype));
          buffers.emplace_back(stream, dtype, Shape{n}, values.back());
          args.addends.push_back(buffers.back());
        }
        std::vector<float> sum = values[0];
        for (size_t i = 1; i < count; ++i)
          for (size_t k = 0; k < sum.size(); ++k) sum[k] += values[i][k];
        for (float& x : sum) x = stored(x);
        args.out = args.addends.back();
        add_in_order(stream, args);
        CHECK(buffers.back().floats() == sum);
      }
    }
    DeviceBuffer one(stream, dtype, {4}), other(stream, dtype, {5});
    CHECK_THROWS_WITH(add_in_order(stream, {.addends = {}, .out = one}),
                      "[add_in_order] 0 addends: expected 1 to 64");
    CHECK_THROWS_AS(add_in_order(stream, {.addends = {one, other}, .out = one}), ShapeError);
  });
}

TEST_CASE("elementwise: copy_columns puts a matrix beside others") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (int64_t columns : {1, 7, 64, 20000}) {
      const int64_t rows = 5, whole = 2 * columns + 3;
      const auto values = normal_values(rows * columns, 3, dtype);
      DeviceBuffer source(stream, dtype, {rows, columns}, values),
          destination(stream, dtype, {rows, whole},
                      std::vector<float>(static_cast<size_t>(rows * whole), -1.0f));
      copy_columns(stream, source, {}, destination, columns + 1);
      const std::vector<float> got = destination.floats();
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < whole; ++column) {
          const bool inside = column > columns && column <= 2 * columns;
          const float want =
              inside ? values[static_cast<size_t>(row * columns + column - columns - 1)] : -1.0f;
          REQUIRE(got[static_cast<size_t>(row * whole + column)] == want);
        }
      }
    }
  });
  Stream stream = Stream::cpu();
  DeviceBuffer narrow(stream, DType::f32, {2, 3}), wide(stream, DType::f32, {2, 5}),
      other(stream, DType::i32, {2, 3});
  CHECK_THROWS_WITH(copy_columns(stream, narrow, {}, wide, 3),
                    Catch::Contains("[copy_columns] source") && Catch::Contains("from column 3 on"));
  CHECK_THROWS_AS(copy_columns(stream, other, {}, wide, 0), ShapeError);
  CHECK_THROWS_AS(copy_columns(stream, narrow, {2, 4}, wide, 0), ShapeError);
}

TEST_CASE("elementwise: copy_columns takes some columns and converts them as cast does") {
  for_each_device_and_dtype([](Stream& stream, DType from) {
    for (DType to : {DType::f32, DType::bf16}) {
      for (ColumnRange range : {ColumnRange{3, 10}, ColumnRange{8, 24}}) {
        const int64_t rows = 5, columns = range.end - range.begin;
        const auto values = normal_values(rows * 32, 3, from);
        DeviceBuffer source(stream, from, {rows, 32}, values), destination(stream, to, {rows, 40}),
            whole(stream, to, {rows, 32});
        copy_columns(stream, source, range, destination, 16);
        cast(stream, source, whole);
        const std::vector<float> got = destination.floats(), want = whole.floats();
        for (int64_t i = 0; i < rows * columns; ++i) {
          const int64_t row = i / columns, column = i % columns;
          REQUIRE(got[static_cast<size_t>(row * 40 + 16 + column)] ==
                  want[static_cast<size_t>(row * 32 + range.begin + column)]);
        }
      }
    }
  });
}

TEST_CASE("elementwise: sum_into adds to what is there, accurately and the same for any number of threads") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (int64_t n : kSizes) {
      INFO("n " << n);
      auto x = normal_values(n, 1, dtype);
      double want = 5, size = 5;
      for (float v : x) {
        want += v;
        size += std::abs(v);
      }
      DeviceBuffer x_n(stream, dtype, {n}, x), out(stream, DType::f32, {1});
      std::vector<float> first;
      for_each_thread_count([&](int) {
        out.upload(std::array{5.0f});
        sum_into(stream, x_n, out);
        if (first.empty()) first = out.floats();
        CHECK(out.floats() == first);
      });
      check_close(first, std::array{want}, tolerance(DType::f32, 1, n), std::array{size});
    }
  });
}

TEST_CASE("elementwise operations on meta record what crosses memory") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  Tensor wide = shape_only(DType::f32, {4, 8}), narrow = shape_only(DType::bf16, {4, 8}),
         one = shape_only(DType::f32, {1});
  double expected = 0;
  auto costs = [&](double bytes) {
    expected += bytes;
    CHECK(recorder.bytes() == expected);
  };
  cast(stream, wide, narrow);
  costs(32 * 6);
  fill_zero(stream, wide);
  costs(32 * 4);
  add(stream, narrow, narrow, narrow);
  costs(32 * 6);
  sum_into(stream, wide, one);
  costs(32 * 4);
}

TEST_CASE("elementwise operations refuse tensors that do not fit") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  Tensor x = shape_only(DType::f32, {4, 8}), narrow = shape_only(DType::bf16, {4, 8}),
         flat = shape_only(DType::f32, {32});
  Tensor ids = shape_only(DType::i32, {4, 8}), one = shape_only(DType::f32, {1});
  CHECK_THROWS_WITH(copy(stream, x, narrow),
                    "[copy] source f32 [4, 8] and destination bf16 [4, 8] differ: only cast converts");
  CHECK_THROWS_WITH(copy(stream, x, flat),
                    "[copy] source f32 [4, 8] and destination f32 [32] differ: a copy needs the same shape");
  CHECK_THROWS_WITH(cast(stream, x, flat), "[cast] shapes differ: source f32 [4, 8], destination f32 [32]");
  CHECK_THROWS_WITH(cast(stream, ids, x),
                    "[cast] i32 cannot become f32: only f32 and bf16 convert into each other");
  CHECK_THROWS_WITH(add(stream, ids, ids, ids), "[add] a is i32 [4, 8], expected f32 or bf16");
  CHECK_THROWS_WITH(add(stream, narrow, x, narrow), "[add] b is f32 [4, 8], expected bf16 [4, 8] (like a)");
  CHECK_THROWS_WITH(add(stream, x, x, flat), "[add] out is f32 [32], expected f32 [4, 8] (like a)");
  CHECK_THROWS_WITH(sum_into(stream, ids, one), "[sum_into] x is i32 [4, 8], expected f32 or bf16");
  CHECK_THROWS_WITH(sum_into(stream, x, flat), "[sum_into] out is f32 [32], expected f32 [1]");
}
