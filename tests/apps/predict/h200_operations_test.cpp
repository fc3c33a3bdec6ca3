#include <cmath>

#include "apps/predict/machine.h"
#include "tests/apps/predict/small_plan.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::test;

// By `bench kernels` on an H200, 2026-11-29.

namespace {

/// Of the debug model with 16 sequences of 2048.
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

/// In TFLOP/s: of the debug model, of four sequences of 4096 with 32 heads, and of two of 8192 of the 1B and
/// the 8B.
struct Attention {
  int64_t width;
  double forward, backward, cudnn_forward, cudnn_backward;
};
const Attention kAttention[] = {{16, 135.8, 146.2, 100.3, 70.5},
                                {32, 227.0, 209.6, 231.1, 151.7},
                                {64, 317.6, 232.0, 486.9, 310.8},
                                {128, 325.6, 218.8, 649.9, 446.3}};

bool is_within(double factor, double a, double b) { return std::abs(std::log(a / b)) < std::log(factor); }

}  // namespace

TEST_CASE("attention of heads of any width is about as fast as planned") {
  Machine machine{.device = find_device("h200_sxm")};
  RecordedOperation o{.precision = Precision::bf16, .flops = 1e12};
  for (const Attention& a : kAttention) {
    o.call.tensors = {{nullptr, DType::bf16, {100, 12 * a.width}},
                      {nullptr, DType::bf16, {100, 4 * a.width}},
                      {nullptr, DType::f32, {1, 4, 100}}};
    for (const bool by_cudnn : {false, true}) {
      machine.has_cudnn_attention = by_cudnn;
      for (const bool backward : {false, true}) {
        o.op = backward ? "attention_backward" : "attention_forward";
        const double came = by_cudnn ? (backward ? a.cudnn_backward : a.cudnn_forward)
                                     : (backward ? a.backward : a.forward),
                     planned = 1 / machine.time_of(o).seconds;
        INFO(o.op << " of width " << a.width << (by_cudnn ? ", cuDNN" : "") << ": planned " << planned
                  << " TFLOP/s, came " << came);
        CHECK(is_within(1.3, planned, came));
      }
    }
  }
}

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
      CHECK(is_within(1.6, us, took.us));
    }
  }
  CHECK(found >= std::ssize(kTook));
}
