#include <cmath>

#include "apps/predict/machine.h"
#include "tests/apps/predict/small_plan.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::test;

namespace {

/// By `bench kernels` on an H200, 2026-11-29: of the debug model with 16 sequences of 2048.
struct Took {
  std::string variant;
  int64_t rows, columns, inner;
  double us;
};
const Took kTook[] = {{"forward", 32768, 768, 256, 25.8},         {"forward", 32768, 1536, 256, 49.4},
                      {"forward", 32768, 256, 768, 24.2},         {"input gradient", 32768, 256, 768, 24.8},
                      {"input gradient", 32768, 256, 1536, 43.0}, {"weight gradient", 768, 256, 32768, 27.3},
                      {"weight gradient", 256, 768, 32768, 27.4}, {"weight gradient", 1536, 256, 32768, 45.8},
                      {"weight gradient", 256, 256, 32768, 12.7}};

}  // namespace

TEST_CASE(
    "products of a small model, also with few rows and columns and much between, take about as planned") {
  const DeviceTable device = find_device("h200_sxm");
  const PlannedExperiment planned =
      plan_experiment(load_config("", {"--model.flavor", "debugmodel", "--training.seq_len", "2048",
                                       "--training.local_batch_size", "16", "--training.device", "cuda"}),
                      1, device.capability);
  const Machine machine{.device = device};
  int found = 0;
  for (const RecordedOperation& o :
       record_first_rank(planned.experiment.shape, planned.device, planned.experiment.mesh).operations) {
    if (o.op != "matmul") continue;
    const ProductExtents e = product_extents(o);
    for (const Took& took : kTook) {
      if (o.variant != took.variant || e.rows != took.rows || e.columns != took.columns ||
          e.inner != took.inner)
        continue;
      ++found;
      const double us = 1e6 * machine.time_of(o).seconds;
      INFO(o.variant << " " << e.rows << " x " << e.columns << " x " << e.inner << ": planned " << us
                     << " us, took " << took.us);
      CHECK(std::abs(std::log(us / took.us)) < std::log(1.6));
    }
  }
  CHECK(found >= std::ssize(kTook));
}
