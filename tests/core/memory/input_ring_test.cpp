#include "core/memory/input_ring.h"

#include "core/cost.h"
#include "core/ops/elementwise.h"
#include "tests/support/devices.h"

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr std::string_view kNames[] = {"tokens", "targets"};
constexpr int64_t kElements = 100;

MemoryPlan plan_of_ring() {
  CostRecorder recorder;
  Stream meta = Stream::meta(recorder, {DeviceType::cuda, 0});
  Arena arena;
  InputRing ring(meta, arena, kNames, kElements);
  return arena.plan();
}

std::vector<int32_t> numbers(int batch, int array, int64_t count) {
  std::vector<int32_t> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<int32_t>(10000 * batch + 1000 * array + i));
  return values;
}

}  // namespace

TEST_CASE("the input ring's slots are planned") {
  CHECK(plan_of_ring().persistent.size() == 2 * InputRing::kSlots);
  CHECK(plan_of_ring().total_bytes() == static_cast<int64_t>(2 * InputRing::kSlots) * aligned(4 * kElements));
}

TEST_CASE("every micro-batch reads its own inputs, however far the host and the copies are ahead") {
  for (Device device : devices()) {
    Stream stream = stream_on(device);
    Arena arena(plan_of_ring(), device);
    InputRing ring(stream, arena, kNames, kElements);
    constexpr int kBatches = 9;
    DeviceBuffer tokens(stream, DType::i32, {4, 25}), targets(stream, DType::i32, {kElements}),
        seen(stream, DType::i32, {kBatches, 2 * kElements});
    const Tensor places[] = {tokens, targets};
    auto upload = [&](int batch) {
      // Gone after the call: pageable memory is not what is copied from.
      const std::vector<int32_t> a = numbers(batch, 0, kElements), b = numbers(batch, 1, kElements);
      const std::span<const int32_t> arrays[] = {a, b};
      ring.upload(arrays);
    };
    upload(0);
    for (int batch = 0; batch < kBatches; ++batch) {
      ring.take(places);
      if (batch + 1 < kBatches) upload(batch + 1);
      const Tensor row = seen.tensor().slice(batch, batch + 1).reshape({2, kElements});
      cast(stream, tokens.tensor().reshape({1, kElements}), row.slice(0, 1));
      cast(stream, targets.tensor().reshape({1, kElements}), row.slice(1, 2));
    }
    const std::vector<int32_t> got = seen.download_as<int32_t>();
    for (int batch = 0; batch < kBatches; ++batch) {
      for (int array = 0; array < 2; ++array) {
        INFO(to_string(device) << ", micro-batch " << batch << ", array " << array);
        const auto at = got.begin() + (2 * batch + array) * kElements;
        CHECK((std::vector<int32_t>(at, at + kElements) == numbers(batch, array, kElements)));
      }
    }
  }
}

TEST_CASE("the input ring takes no more than it has slots for, and gives no more than it has") {
  Stream stream = Stream::cpu();
  Arena arena(plan_of_ring(), {DeviceType::cpu, 0});
  InputRing ring(stream, arena, kNames, kElements);
  const std::vector<int32_t> a = numbers(0, 0, 5);
  const std::span<const int32_t> arrays[] = {a, a};
  ring.upload(arrays);
  ring.upload(arrays);
  CHECK_THROWS_WITH(ring.upload(arrays),
                    Catch::Contains("2 uploads wait to be taken, and there are 2 slots"));
  ring.take({});
  ring.take({});
  CHECK_THROWS_WITH(ring.take({}), "[input ring] nothing has been uploaded that is not taken yet");
  ring.upload(arrays);
  CHECK_NOTHROW(ring.take({}));
}
