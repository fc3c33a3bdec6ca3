#include "apps/commands/bench_kernels_command.h"

#include <sstream>

#include "apps/bench/kernel_cases.h"
#include "core/cost.h"
#include "core/error.h"
#include "core/io/json.h"
#include "tests/support/devices.h"

using namespace ottava;
using Catch::Contains;

namespace {

KernelShapes tiny() {
  return {.batch = 1,
          .sequence = 64,
          .dim = 128,
          .ffn = 128,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = 64,
          .vocabulary = 256,
          .loss_rows = 16,
          .parameters = 4096};
}

std::string printed(const BenchKernelsCommand& command) {
  std::ostringstream out;
  CHECK(run_bench_kernels_command(command, out) == 0);
  return out.str();
}

}  // namespace

TEST_CASE("every measured operation runs and says what it costs") {
  test::for_each_device([](Stream& stream) {
    for (const KernelCase& kernel : all_kernel_cases(tiny(), stream.device())) {
      INFO(kernel.name);
      CostRecorder recorder;
      Stream meta = Stream::meta(recorder, stream.device());
      Workbench shapes({DeviceType::meta, 0}), bench(stream.device());
      kernel.prepare(shapes, meta)(meta);
      REQUIRE(recorder.totals().size() == 1);
      CHECK(recorder.bytes() > 0);
      const double products = recorder.flops(Precision::bf16) + recorder.flops(Precision::fp8);
      CHECK((kernel.bound == Bound::copy || products > 0));
      auto run = kernel.prepare(bench, stream);
      run(stream);
      run(stream);
      stream.synchronize();
    }
  });
}

TEST_CASE("bench kernels prints a table, or JSON, or counts alone") {
  BenchKernelsCommand command{.device = "cpu", .shapes = "small", .seconds = 0.0005};
  CHECK_THAT(printed(command), Contains("rms_norm backward + residual") && Contains("of the peak"));
  command.print = BenchKernelsCommand::Print::json;
  Json report = Json::parse(printed(command), "test");
  CHECK(report.at("copy_bytes_per_second", "report").as_number("copy") > 0);
  for (const Json& kernel : report.at("kernels", "report").as_array("kernels")) {
    CHECK(kernel.at("share_of_peak", "kernel").as_number("share") > 0);
  }
  command.device = "meta";
  command.shapes = "8B";
  report = Json::parse(printed(command), "test");
  const Json& copy = report.at("kernels", "report").as_array("kernels")[0];
  CHECK(copy.at("bytes", "copy").as_number("bytes") == 8.0 * (1 << 28));
  CHECK(copy.find("seconds") == nullptr);
}

TEST_CASE("bench kernels refuses what it does not know") {
  std::ostringstream out;
  CHECK_THROWS_WITH(run_bench_kernels_command({.device = "cpu", .shapes = "huge"}, out),
                    Contains("--shapes is 'huge', expected 8B or small"));
  CHECK_THROWS_WITH(run_bench_kernels_command({.device = "tpu"}, out), Contains("'tpu' is not a device"));
}
