#include "apps/commands/bench_kernels_command.h"
#include "apps/step/step_plan.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "apps/config/experiment.h"
#include "apps/decide/workbench.h"
#include "apps/predict/measured_operations.h"
#include "core/cpu/bf16_products.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/ops/matmul/matmul.h"
#include "core/threads/parallel_for.h"
#include "tests/support/devices.h"
#include "tests/support/overrides.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

Overrides tiny(const Overrides& more = {}) {
  return model_of({.dim = 128, .layers = 2, .heads = 2, .kv_heads = 1, .ffn = 128}) +
         Overrides{"--model.vocab_size",           "256", "--training.device",           "cpu",
                   "--training.seq_len",           "64",  "--training.local_batch_size", "1",
                   "--activation_checkpoint.mode", "none"} +
         more;
}

std::string printed(const BenchKernelsCommand& command) {
  std::ostringstream out;
  CHECK(run_bench_kernels_command(command, out) == 0);
  return out.str();
}

std::vector<RecordedOperation> operations(const Overrides& overrides, Device target) {
  const Experiment e = resolve_experiment(load_config("", overrides), nullptr, 1);
  return record_first_rank(e.shape, target, e.mesh).operations;
}

const RecordedOperation* find(const std::vector<RecordedOperation>& all, std::string_view op,
                              std::string_view variant, std::string_view operands) {
  for (const RecordedOperation& o : all) {
    if (o.op == op && o.variant == variant && o.operands.starts_with(operands)) return &o;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("every measured operation runs as it was recorded, and costs what it recorded") {
  const Overrides float8 = {"--model.converters", "[quantize.linear.float8]",
                            "--quantize.linear.float8.recipe_name"};
  std::vector<Overrides> steps = {
      tiny(), tiny({"--activation_checkpoint.mode", "full", "--training.mixed_precision_param", "float32"}),
      tiny({"--model.attn_mask_type", "block_causal", "--optimizer.state_dtype", "bfloat16"}),
      tiny({"--optimizer.name", "Muon"}),
      tiny({"--optimizer.name", "Muon", "--optimizer.ns_dtype", "float32", "--model.qk_norm", "true"})};
  for (const char* recipe : {"tensorwise", "rowwise", "blockwise", "delayed"})
    steps.push_back(tiny({float8[0], float8[1], float8[2], recipe}));
  test::for_each_device([&](Stream& stream) {
    for (const Overrides& step : steps) {
      const std::vector<RecordedOperation> all = operations(step, stream.device());
      const bool is_float8 = std::ranges::count(step, float8[0]) > 0;
      CHECK(std::ranges::any_of(all, [](const auto& o) { return o.op == "matmul"; }));
      CHECK(std::ranges::any_of(all, [](const auto& o) { return o.op == "quantize"; }) == is_float8);
      for (const RecordedOperation& o : all) {
        INFO(o.op << " " << o.variant << ": " << o.operands);
        CHECK(o.calls > 0);
        CHECK(o.bytes > 0);
        Workbench bench(stream.device()), shapes({DeviceType::meta, 0});
        // Made again on `meta` it is the same operation.
        CostRecorder recorder;
        Stream meta = Stream::meta(recorder, stream.device());
        prepare(o, shapes, 256)(meta);
        REQUIRE(recorder.operations().size() == 1);
        CHECK(recorder.operations()[0].operands == o.operands);
        CHECK(recorder.operations()[0].bytes == o.bytes);
        CHECK(recorder.operations()[0].flops == o.flops);
        // And on the device it runs, more than once.
        set_matmul_workspace(stream,
                             bench.tensor(DType::u8, {std::max<int64_t>(recorder.workspace_bytes(), 1)}));
        const auto run = prepare(o, bench, 256);
        run(stream);
        run(stream);
        stream.synchronize();
      }
    }
  });
}

TEST_CASE("the operations of a step are those that the model makes, as often as it makes them") {
  const std::vector<RecordedOperation> all =
      operations(tiny({"--training.global_batch_size", "3"}), {DeviceType::cpu, 0});
  // wo and w2 have the same shapes.
  const RecordedOperation* forward =
      find(all, "matmul", "forward", "bf16 [64, 128] bf16 [128, 128] bf16 [64, 128]");
  REQUIRE(forward);
  CHECK(forward->calls == 3 * 2 * 2);
  CHECK(forward->flops == 2.0 * 64 * 128 * 128);
  CHECK(forward->bytes == 2.0 * (64 * 128 + 128 * 128 + 64 * 128));
  const RecordedOperation* qkv =
      find(all, "matmul", "forward", "bf16 [64, 128] bf16 [256, 128] bf16 [64, 256]");
  REQUIRE(qkv);
  CHECK(qkv->calls == 3 * 2 * 2);  // wqkv and w13; the output layer of 256 words makes f32
  const RecordedOperation* attention = find(all, "attention_forward", "", "bf16 [64, 256]");
  REQUIRE(attention);
  CHECK(attention->calls == 3 * 2);
  CHECK(attention->flops == 4.0 * 64 * 2 * (64 * 65 / 2));
  const RecordedOperation* update = find(all, "adamw", "", "f32 ");
  REQUIRE(update);
  CHECK(update->calls == 1);
  // All there is: what the labels sum up to.
  const Experiment e = resolve_experiment(load_config("", tiny()), nullptr, 1);
  const StepPlan plan = record_first_rank(e.shape, {DeviceType::cpu, 0}, e.mesh);
  double flops = 0, bytes = 0, sum_flops = 0, sum_bytes = 0;
  for (const RecordedOperation& o : plan.operations) {
    flops += static_cast<double>(o.calls) * o.flops;
    bytes += static_cast<double>(o.calls) * o.bytes;
  }
  for (const CostRecorder::Total& t : plan.costs) sum_flops += t.flops, sum_bytes += t.bytes;
  CHECK(flops == Approx(sum_flops));
  CHECK(bytes == Approx(sum_bytes));
}

TEST_CASE("bench kernels prints a line for each operation, and writes them for programs") {
  const TemporaryFolder folder;
  BenchKernelsCommand command{
      .file = {}, .overrides = tiny(), .only = "*norm*", .json = folder / "kernels.json"};
  const std::string text = printed(command);
  CHECK_THAT(text, Contains("Model llama3 of one's own on cpu, rank 0 of 1") && Contains("\ncopy ") &&
                       Contains("\nrms_norm_forward ") && Contains("\nrms_norm_backward ") &&
                       Contains("bf16 [64, 128], ") && Contains("\ntogether ") && !Contains("\nmatmul "));
  const Json report = Json::parse(read_file(command.json), "report");
  CHECK(report.at("device", "report").as_string("device") == "cpu");
  CHECK(report.at("copy_bytes_per_second", "report").as_number("copy") > 0);
  CHECK(report.at("gemm_flops_per_second", "report").as_number("gemm") > 0);
  // What plans are calibrated with: the same operations are found again, others of their kind by their rate.
  const MeasuredOperations measured = MeasuredOperations::read({command.json});
  CHECK(measured.size() == report.at("kernels", "report").as_array("kernels").size());
  std::set<std::string> names;
  for (const Json& kernel : report.at("kernels", "report").as_array("kernels")) {
    names.insert(kernel.at("name", "kernel").as_string("name"));
    CHECK(kernel.at("share_of_peak", "kernel").as_number("share") > 0);
    CHECK(kernel.at("calls", "kernel").as_number("calls") >= 1);
    CHECK(kernel.at("planned_seconds", "kernel").as_number("planned") > 0);
  }
  CHECK(names == std::set<std::string>{"grad_norm_squared", "rms_norm_backward", "rms_norm_forward"});
}

TEST_CASE("bench kernels compares products with a large one of the same precision") {
  const TemporaryFolder folder;
  const std::string file = folder / "kernels.json";
  for (const bool f32 : {false, true}) {
    const Overrides precision{"--training.mixed_precision_param", f32 ? "float32" : "bfloat16"};
    const std::string text =
        printed({.file = {}, .overrides = tiny(precision), .only = "matmul forward", .json = file});
    CHECK_THAT(text, Contains(" TFLOP/s, f32 product "));
    const Json report = Json::parse(read_file(file), "report");
    const auto peak = [&](const char* name) { return report.at(name, "report").as_number(name); };
    const double own = peak(f32 ? "f32_gemm_flops_per_second" : "gemm_flops_per_second");
    for (const Json& kernel : report.at("kernels", "report").as_array("kernels")) {
      const auto number = [&](const char* name) { return kernel.at(name, "kernel").as_number(name); };
      CHECK(number("share_of_peak") == Approx(number("flops") / number("seconds") / own));
      CHECK(number("share_of_peak") <= 1);
    }
    CHECK(MeasuredOperations::read({file}).f32_gemm_flops_per_second() == peak("f32_gemm_flops_per_second"));
  }
}

TEST_CASE("bench kernels measures with the threads that a run would have, and in the ways it would choose") {
  const int before = parallel_threads();
  const TemporaryFolder folder;
  const auto decided = [&](const Overrides& more) {
    const std::string file = folder / "kernels.json";
    printed({.file = {}, .overrides = tiny(more), .only = "rms_norm_forward", .seconds = 0.1, .json = file});
    return Json::parse(read_file(file), "report").at("decisions", "report").dump();
  };
  CHECK(decided({"--training.threads", "1"}) == "null");
  CHECK(parallel_threads() == 1);
  set_parallel_threads(before);
  const Overrides large = {"--model.dim",          "512",    "--model.ffn_dim",    "2048",
                           "--model.vocab_size",   "512",    "--training.seq_len", "512",
                           "--cpu.bf16_attention", "widened"};
  const std::string chosen = decided(large);
  if (cpu::multiplies_bf16_directly()) {
    CHECK_THAT(chosen, Contains("\"cpu.bf16_matmul\"") && (Contains("direct") || Contains("widened")) &&
                           !Contains("cpu.bf16_attention"));
  } else {
    CHECK(chosen == "null");
  }
}

TEST_CASE("bench kernels ends in time and says what it left out, or only counts, for any device") {
  const std::string none = printed({.file = {}, .overrides = tiny(), .only = "rms_norm*", .seconds = 0});
  CHECK_THAT(none, Contains(" not measured: 0 s were over (--seconds)\n"));
  const TemporaryFolder folder;
  BenchKernelsCommand counts{.file = {},
                             .overrides = tiny({"--training.device", "cuda", "--model.flavor", "8B"}),
                             .work = BenchKernelsCommand::Work::count,
                             .json = folder / "counts.json"};
  CHECK_THAT(printed(counts), Contains("on cuda") && Contains("matmul weight gradient") &&
                                  Contains("bf16 [64, 128]") && !Contains("together"));
  const Json counted = Json::parse(read_file(counts.json), "report");
  CHECK(!counted.at("kernels", "report").as_array("kernels").empty());
  CHECK(counted.find("device") == nullptr);  // measured on none
}

TEST_CASE("bench kernels refuses what it does not know") {
  std::ostringstream out;
  CHECK_THROWS_WITH(
      run_bench_kernels_command({.file = {}, .overrides = tiny(), .only = "gemm*"}, out),
      Contains("[bench] --only 'gemm*' matches no operation: `bench kernels --count` lists them"));
  CHECK_THROWS_WITH(
      run_bench_kernels_command({.file = {}, .overrides = tiny({"--training.device", "tpu"})}, out),
      Contains("training.device: expected auto, cpu or cuda"));
  out.str("");
  CHECK_THROWS_WITH(
      run_bench_kernels_command({.file = {}, .overrides = tiny(), .json = "/nowhere/at/all.json"}, out),
      Contains("[file] cannot write /nowhere/at/all.json: No such file or directory"));
  CHECK(out.str().empty());  // before the work
}
