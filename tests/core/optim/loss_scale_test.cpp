#include "core/optim/loss_scale.h"

#include <limits>

#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("a constant loss scale never moves") {
  LossScale scale = LossScale::constant(128);
  scale.update(true);
  for (int i = 0; i < 2000; ++i) scale.update(false);
  CHECK(scale.value() == 128);
  scale.restore({.scale = 4, .good_steps = 3});  // the configuration decides, not the checkpoint
  CHECK(scale.value() == 128);
}

TEST_CASE("a dynamic loss scale doubles after 1000 good steps in a row and halves on overflow") {
  LossScale scale = LossScale::dynamic();
  CHECK(scale.value() == 65536);
  for (int i = 0; i < 999; ++i) scale.update(false);
  CHECK(scale.value() == 65536);
  scale.update(false);
  CHECK(scale.value() == 131072);
  for (int i = 0; i < 999; ++i) scale.update(false);
  scale.update(true);
  CHECK(scale.value() == 65536);
  CHECK(scale.state().good_steps == 0);  // the count starts again
  for (int i = 0; i < 1000; ++i) scale.update(false);
  CHECK(scale.value() == 131072);
}

TEST_CASE("a dynamic loss scale stays within [1, 2^32]") {
  LossScale scale = LossScale::dynamic();
  for (int i = 0; i < 40; ++i) scale.update(true);
  CHECK(scale.value() == 1);
  for (int i = 0; i < 40 * 1000; ++i) scale.update(false);
  CHECK(scale.value() == 4294967296.0);
}

TEST_CASE("a dynamic loss scale continues from its state") {
  LossScale straight = LossScale::dynamic(), first = LossScale::dynamic(), second = LossScale::dynamic();
  auto overflows = [](int step) { return step % 1300 == 700; };
  for (int i = 0; i < 3000; ++i) straight.update(overflows(i));
  for (int i = 0; i < 1500; ++i) first.update(overflows(i));
  CHECK(first.state().good_steps != 0);
  second.restore(first.state());
  for (int i = 1500; i < 3000; ++i) second.update(overflows(i));
  CHECK(second.state() == straight.state());
}

TEST_CASE("impossible loss scales are refused") {
  CHECK_THROWS_WITH(LossScale::constant(0),
                    "[loss_scale] the constant is 0, expected a positive finite number");
  CHECK_THROWS_WITH(LossScale::constant(std::numeric_limits<double>::infinity()),
                    "[loss_scale] the constant is inf, expected a positive finite number");
  CHECK_THROWS_AS(LossScale::constant(std::numeric_limits<double>::quiet_NaN()), ConfigError);
  LossScale scale = LossScale::dynamic();
  CHECK_THROWS_WITH(scale.restore({.scale = 3, .good_steps = 0}),
                    "[loss_scale] the checkpoint's state is impossible: scale 3 after 0 good steps, expected "
                    "a power of two "
                    "from 1 to 4294967296 and 0 to 999 steps");
  CHECK_THROWS_AS(scale.restore({.scale = 0.5}), FileError);
  CHECK_THROWS_AS(scale.restore({.scale = 8589934592.0}), FileError);
  CHECK_THROWS_AS(scale.restore({.scale = std::numeric_limits<double>::quiet_NaN()}), FileError);
  CHECK_THROWS_AS(scale.restore({.scale = 2, .good_steps = 1000}), FileError);
  CHECK_THROWS_AS(scale.restore({.scale = 2, .good_steps = -1}), FileError);
  CHECK(scale.value() == 65536);
}
