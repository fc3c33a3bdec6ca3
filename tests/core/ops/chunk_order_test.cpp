#include "core/ops/chunk_order.h"

#include "core/cost.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

struct Case {
  int64_t ranks, batch, chunk, width;
  int64_t rows() const { return 2 * ranks * batch * chunk; }
};

/// For every row in order of position, its row in order of ranks.
std::vector<int64_t> rows_by_rank(const Case& c) {
  std::vector<int64_t> rows(static_cast<size_t>(c.rows()));
  for (int64_t rank = 0, from = 0; rank < c.ranks; ++rank) {
    for (const int64_t chunk : {rank, 2 * c.ranks - 1 - rank}) {
      for (int64_t b = 0; b < c.batch; ++b) {
        for (int64_t i = 0; i < c.chunk; ++i)
          rows[static_cast<size_t>((b * 2 * c.ranks + chunk) * c.chunk + i)] = from++;
      }
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("chunk order: every row is found at its position, and is put back") {
  // One rank; odd widths that no 16 bytes divide; more than a piece on the CPU and a block on a GPU.
  const Case cases[] = {{1, 1, 1, 1}, {2, 1, 3, 8}, {3, 2, 5, 7}, {2, 2, 700, 24}, {4, 3, 2, 1}};
  for_each_device([&](Stream& stream) {
    for (const Case& c : cases) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        INFO(c.ranks << " ranks, " << c.batch << " x " << c.chunk << " x " << c.width << " "
                     << name_of(dtype));
        const Shape shape{c.rows(), c.width};
        const std::vector<float> values = normal_values(shape.numel(), 1, dtype);
        DeviceBuffer by_rank(stream, dtype, shape, values), by_position(stream, dtype, shape),
            again(stream, dtype, shape);
        order_by_position(stream, {by_rank, by_position, c.ranks, c.batch});
        const std::vector<int64_t> rows = rows_by_rank(c);
        const std::vector<float> got = by_position.floats();
        for (size_t i = 0; i < got.size(); ++i) {
          const auto width = static_cast<size_t>(c.width);
          REQUIRE(got[i] == values[static_cast<size_t>(rows[i / width]) * width + i % width]);
        }
        order_by_rank(stream, {again, by_position, c.ranks, c.batch});
        CHECK(again.floats() == values);
      }
    }
  });
}

TEST_CASE("chunk order: its cost is every byte read and written, and what does not fit is refused") {
  CostRecorder recorder;
  Stream meta = Stream::meta(recorder, Device{});
  const Tensor x{nullptr, DType::bf16, {24, 8}}, y = x;
  order_by_position(meta, {x, y, 3, 2});
  CHECK(recorder.totals().at(0).bytes == 2 * 24 * 8 * 2);
  CHECK_THROWS_WITH(order_by_rank(meta, {x, {nullptr, DType::f32, {24, 8}}, 3, 2}),
                    Catch::Contains("[order_by_rank] by_position is f32 [24, 8]"));
  CHECK_THROWS_WITH(order_by_position(meta, {x, y, 5, 1}),
                    "[order_by_position] bf16 [24, 8] is not a matrix of 10 chunks for each of 1 sequences");
}
