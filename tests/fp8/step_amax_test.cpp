#include "fp8/step_amax.h"

#include <array>
#include <cmath>

#include "core/cost.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

namespace {

using Words = std::vector<uint32_t>;

struct Slots {
  Slots(Stream& stream, const Words& words)
      : buffer(stream, DType::u32, {static_cast<int64_t>(words.size())}) {
    buffer.upload_as<uint32_t>(words);
  }
  Words words() const { return buffer.download_as<uint32_t>(); }
  DeviceBuffer buffer;
};

}  // namespace

TEST_CASE("amax: what a micro-batch saw joins what the step saw, and a NaN stays") {
  for_each_device([](Stream& stream) {
    Slots current(stream, {1, 7, 0x7fc00000u, 0}), largest(stream, {3, 5, 9, 0x7f800000u});
    fold_amax(stream, {.current = current.buffer, .largest = largest.buffer});
    CHECK(largest.words() == Words{3, 7, 0x7fc00000u, 0x7f800000u});
    CHECK(current.words() == Words{0, 0, 0, 0});
  });
}

// A scale from earlier steps saturates an infinity without a word.
TEST_CASE("amax: an infinity or a NaN raises its flag, and no other") {
  for_each_device([](Stream& stream) {
    Slots amaxes(stream, {0x7f7fffffu, 0x7f800000u, 0, 0x7f800001u, 1}), flags(stream, {0, 0, 0, 0, 1});
    flag_non_finite(stream, {.amaxes = amaxes.buffer, .flags = flags.buffer});
    CHECK(flags.words() == Words{0, 1, 0, 1, 1});
  });
}

TEST_CASE("amax: one raised flag makes the norm NaN, none leaves it") {
  for_each_device([](Stream& stream) {
    for (uint32_t flag : {0u, 1u}) {
      Words words(300, 0);
      words[299] = flag;
      Slots flags(stream, words);
      DeviceBuffer sum(stream, DType::f64, {1});
      sum.upload_as<double>(std::array{2.5});
      poison_if_raised(stream, flags.buffer, sum);
      const double after = sum.download_as<double>()[0];
      CHECK((flag == 1 ? std::isnan(after) : after == 2.5));
    }
  });
}

TEST_CASE("amax: slots of other shapes are refused") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor three = shape_only(DType::u32, {3}), four = shape_only(DType::u32, {4}),
               sum = shape_only(DType::f64, {1});
  CHECK_THROWS_WITH(fold_amax(stream, {.current = three, .largest = four}),
                    "[fold_amax] largest is u32 [4], expected u32 [3]");
  CHECK_THROWS_WITH(flag_non_finite(stream, {.amaxes = three, .flags = four}),
                    "[flag_non_finite] flags is u32 [4], expected u32 [3]");
  CHECK_THROWS_WITH(flag_non_finite(stream, {.amaxes = sum, .flags = sum}),
                    "[flag_non_finite] amaxes is f64 [1], expected u32 [1]");
  CHECK_THROWS_WITH(poison_if_raised(stream, three, four),
                    "[poison_if_raised] sum_of_squares is u32 [4], expected f64 [1]");
}
