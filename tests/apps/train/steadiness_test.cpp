#include <cmath>

#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

// What keeps a run steady: z-loss.

using namespace ottava;
using namespace ottava::test;

TEST_CASE("the z-loss is logged by itself, and a run without it logs none") {
  TinyTraining tiny;
  const CapturedOutput captured;
  tiny.start("with", {"--training.z_loss_weight", "1e-3"})->run();
  tiny.start("without")->run();
  const std::vector<double> z = logged(tiny / "with", "loss_metrics/global_avg_z_loss"),
                            with = logged(tiny / "with", "loss_metrics/global_avg_loss"),
                            without = logged(tiny / "without", "loss_metrics/global_avg_loss");
  REQUIRE(z.size() == with.size());
  // lse of initial logits, which are near 0.
  const double lse = std::sqrt(z[0] / 1e-3);
  CHECK(lse > std::log(2256.0));
  CHECK(lse < std::log(2256.0) + 1);
  CHECK(with[0] == without[0]);
  CHECK(with.back() != without.back());
  for (const Json& line : logged_lines(tiny / "without"))
    CHECK_FALSE(line.find("loss_metrics/global_avg_z_loss"));
}
