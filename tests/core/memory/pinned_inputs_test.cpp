#include "core/memory/pinned_inputs.h"

#include <vector>

#include "core/memory/plan.h"
#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("pinned inputs: copies lie apart until the next step, which has all of the room again") {
  PinnedInputs inputs({DeviceType::cpu, 0}, 2 * kMemoryAlignment);
  for (int step = 0; step < 3; ++step) {
    inputs.begin();
    std::vector<int32_t> tokens{step, 2, 3};
    float scalar = 0.5f;
    const Tensor a = inputs.hold(tokens.data(), view_of(tokens.data(), {3})),
                 b = inputs.hold(&scalar, view_of(&scalar, {1}));
    tokens[0] = 99;
    scalar = 7;
    CHECK(a.as<int32_t>()[0] == step);
    CHECK(a.shape == Shape{3});
    CHECK(b.as<float>()[0] == 0.5f);
    CHECK_THROWS_WITH(inputs.hold(&scalar, view_of(&scalar, {1})),
                      Catch::Contains("512 bytes are held and 4 more asked for, of 512"));
  }
}
