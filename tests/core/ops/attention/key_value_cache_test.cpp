#include "core/ops/attention/key_value_cache.h"

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

TEST_CASE("keys and values of a prompt and of a token go to their positions, and nothing else changes") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const AttentionHeads heads{4, 2, 16};
    const int64_t batch = 3, capacity = 9, width = 64, kv_width = 32, row = width + 2 * kv_width;
    for (const auto& [sequence, position] : {std::pair<int64_t, int64_t>{6, 0}, {5, 4}, {1, 8}}) {
      INFO(sequence << " tokens at " << position);
      const std::vector<float> qkv = normal_values(batch * sequence * row, 1, dtype);
      DeviceBuffer qkv_buffer(stream, dtype, {batch * sequence, row}, qkv),
          q(stream, dtype, {batch * sequence, width}), keys(stream, dtype, {batch, capacity, kv_width}),
          values(stream, dtype, {batch, capacity, kv_width});
      for (bool with_queries : {false, true}) {
        store_key_values(stream, {.qkv = qkv_buffer,
                                  .q = with_queries ? q.tensor() : Tensor{},
                                  .keys = keys,
                                  .values = values,
                                  .heads = heads,
                                  .batch = batch,
                                  .sequence = sequence,
                                  .position = position});
        const std::vector<float> got_q = q.floats(), got_keys = keys.floats(), got_values = values.floats();
        for (int64_t b = 0; b < batch; ++b) {
          for (int64_t t = 0; t < capacity; ++t) {
            const bool is_stored = t >= position && t < position + sequence;
            const float* from =
                &qkv[static_cast<size_t>(is_stored ? (b * sequence + t - position) * row : 0)];
            for (int64_t i = 0; i < kv_width; ++i) {
              const auto at = static_cast<size_t>((b * capacity + t) * kv_width + i);
              REQUIRE((is_stored ? got_keys[at] == from[width + i] : std::isnan(got_keys[at])));
              REQUIRE(
                  (is_stored ? got_values[at] == from[width + kv_width + i] : std::isnan(got_values[at])));
            }
          }
        }
        for (int64_t n = 0; n < batch * sequence * width; ++n) {
          const float got = got_q[static_cast<size_t>(n)];
          REQUIRE((with_queries ? got == qkv[static_cast<size_t>(n / width * row + n % width)]
                                : std::isnan(got)));
        }
      }
    }
  });
}
