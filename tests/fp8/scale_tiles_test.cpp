#include "fp8/scale_tiles.h"

#include "core/cost.h"
#include "core/float8/granularity.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;
using Order = MxScales::Order;

namespace {

struct Size {
  int64_t rows, cols;
};
const Size kSizes[] = {{1, 32}, {32, 33}, {128, 128}, {160, 96}, {300, 700}, {129, 1056}};

Shape plain_shape(Size s, Order order) {
  const int64_t blocks = (s.cols + 31) / 32;
  return order == Order::rows ? Shape{s.rows, blocks} : Shape{blocks, s.rows};
}
uint8_t value_at(int64_t row, int64_t block) {
  return static_cast<uint8_t>(1 + (row * 31 + block * 7) % 254);
}

}  // namespace

TEST_CASE("scale_tiles: plain order and tiles hold the same scales, and padding is zero") {
  for_each_device([](Stream& stream) {
    for (Size s : kSizes) {
      for (Order order : {Order::rows, Order::blocks}) {
        INFO(s.rows << " x " << s.cols << (order == Order::rows ? " by rows" : " by blocks"));
        const int64_t blocks = (s.cols + 31) / 32;
        const Shape shape = plain_shape(s, order),
                    tiled = scale_shape(Granularity::block_1x32, s.rows, s.cols);
        std::vector<uint8_t> plain(static_cast<size_t>(shape.numel())),
            want(static_cast<size_t>(tiled.numel()), 0);
        for (int64_t r = 0; r < s.rows; ++r) {
          for (int64_t b = 0; b < blocks; ++b) {
            plain[static_cast<size_t>(order == Order::rows ? r * blocks + b : b * s.rows + r)] =
                value_at(r, b);
            want[static_cast<size_t>(scale_index(Granularity::block_1x32, {s.rows, s.cols}, r, 32 * b))] =
                value_at(r, b);
          }
        }
        DeviceBuffer list(stream, DType::e8m0, shape), tiles(stream, DType::e8m0, tiled),
            back(stream, DType::e8m0, shape);
        list.upload_as<uint8_t>(plain);
        tile_scales(stream, {.tiles = tiles, .plain = list, .matrix = {s.rows, s.cols}, .order = order});
        CHECK(tiles.download_as<uint8_t>() == want);
        untile_scales(stream, {.tiles = tiles, .plain = back, .matrix = {s.rows, s.cols}, .order = order});
        CHECK(back.download_as<uint8_t>() == plain);
      }
    }
  });
}

TEST_CASE("scale_tiles: the plain bytes of a matrix's parts, one after the other, are those of the whole") {
  for_each_device([](Stream& stream) {
    // Parts of 96 rows, and of 96 columns of the other order: neither is whole tiles.
    for (Order order : {Order::rows, Order::blocks}) {
      const Size whole = order == Order::rows ? Size{288, 160} : Size{160, 288},
                 part = order == Order::rows ? Size{96, 160} : Size{160, 96};
      std::vector<uint8_t> together;
      for (int64_t p = 0; p < 3; ++p) {
        DeviceBuffer tiles(stream, DType::e8m0, scale_shape(Granularity::block_1x32, part.rows, part.cols)),
            list(stream, DType::e8m0, plain_shape(part, order));
        std::vector<uint8_t> bytes(static_cast<size_t>(tiles.tensor().numel()), 0);
        for (int64_t r = 0; r < part.rows; ++r) {
          for (int64_t b = 0; b < part.cols / 32; ++b) {
            const int64_t row = order == Order::rows ? p * 96 + r : r,
                          block = order == Order::rows ? b : p * 3 + b;
            bytes[static_cast<size_t>(scale_index(Granularity::block_1x32, {part.rows, part.cols}, r,
                                                  32 * b))] = value_at(row, block);
          }
        }
        tiles.upload_as<uint8_t>(bytes);
        untile_scales(stream,
                      {.tiles = tiles, .plain = list, .matrix = {part.rows, part.cols}, .order = order});
        for (uint8_t byte : list.download_as<uint8_t>()) together.push_back(byte);
      }
      DeviceBuffer list(stream, DType::e8m0, plain_shape(whole, order)),
          tiles(stream, DType::e8m0, scale_shape(Granularity::block_1x32, whole.rows, whole.cols));
      list.upload_as<uint8_t>(together);
      tile_scales(stream,
                  {.tiles = tiles, .plain = list, .matrix = {whole.rows, whole.cols}, .order = order});
      const auto got = tiles.download_as<uint8_t>();
      for (int64_t r = 0; r < whole.rows; ++r) {
        for (int64_t b = 0; b < whole.cols / 32; ++b)
          REQUIRE(got[static_cast<size_t>(scale_index(Granularity::block_1x32, {whole.rows, whole.cols}, r,
                                                      32 * b))] == value_at(r, b));
      }
    }
  });
}

TEST_CASE("scale_tiles on meta records what crosses memory, and refuses what does not fit") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const MxScales good{.tiles = shape_only(DType::e8m0, {2, 2, 512}),
                      .plain = shape_only(DType::e8m0, {160, 7}),
                      .matrix = {160, 224}};
  tile_scales(stream, good);
  untile_scales(stream, good);
  CHECK(recorder.totals().at(0).bytes == 2048 + 160 * 7);
  MxScales transposed = good, wrong = good;
  transposed.order = Order::blocks;
  wrong.tiles = shape_only(DType::e8m0, {2, 1, 512});
  CHECK_THROWS_WITH(tile_scales(stream, transposed),
                    "[tile_scales] plain is e8m0 [160, 7], expected e8m0 [7, 160]");
  CHECK_THROWS_WITH(untile_scales(stream, wrong),
                    "[untile_scales] tiles is e8m0 [2, 1, 512], expected e8m0 [2, 2, 512]");
}
