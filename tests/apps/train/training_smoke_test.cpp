#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

// Five steps of a small model on whatever instruction set this is run with: the shortest proof that a machine
// trains.

using namespace ottava;
using namespace ottava::test;

TEST_CASE("five training steps bring the loss down, in f32 and bf16 alike") {
  TinyTraining tiny;
  std::vector<double> losses[2];
  for (const char* dtype : {"float32", "bfloat16"}) {
    INFO(dtype);
    TinyTraining::Run run = tiny.start(dtype, {"--training.steps", "5", "--training.mixed_precision_param",
                                               dtype, "--optimizer.lr", "0.02", "--training.seq_len", "64"});
    CHECK(run->run() == Trainer::End::completed);
    std::vector<double>& loss = losses[dtype[0] == 'b'];
    loss = logged(tiny / dtype, "loss_metrics/global_avg_loss");
    REQUIRE(loss.size() == 5);
    CHECK(std::abs(loss[0] - (std::log(2256.0) + 0.5)) < 0.3);
    CHECK(loss[4] < loss[0] - 0.5);
    CHECK(run->state().skipped_steps == 0);
  }
  for (size_t i = 0; i < 5; ++i) CHECK(losses[1][i] == Approx(losses[0][i]).epsilon(0.02));
}
