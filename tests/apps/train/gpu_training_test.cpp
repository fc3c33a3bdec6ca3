#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/cuda/runtime.h"
#include "parallel/checkpoint/snapshot.h"
#include "tests/support/captured_output.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_training.h"

// The trainer on a GPU: rehearsed, as graphs, with validation and checkpoints, against the same run on the
// CPU.

using namespace ottava;
using namespace ottava::test;

namespace {

const TinyTraining::Overrides kRun =
    words(
        "--training.steps 6 --training.global_batch_size 6 --evaluation.enable true --evaluation.freq 3 "
        "--evaluation.max_new_tokens 4") +
    TinyTraining::Overrides{"--evaluation.prompts", "[the text, a]"};

/// What prompts were continued with, step after step.
std::string samples(const std::string& run_folder) {
  std::string texts;
  for (const Json& line : logged_lines(run_folder))
    if (const Json* found = line.find("samples")) texts += found->dump();
  return texts;
}

}  // namespace

TEST_CASE(
    "a run on a GPU ends where the CPU's does, with graphs and without, and goes on bitwise from a "
    "checkpoint") {
  if (!has_gpu()) return skip(kNoGpu);
  const Device gpu{DeviceType::cuda, 0};
  const TinyTraining tiny;
  const TinyTraining::Overrides validation = tiny.validation();
  auto losses = [&](const std::string& run) { return logged(tiny / run, "loss_metrics/global_avg_loss"); };
  auto norms = [&](const std::string& run) { return logged(tiny / run, "grad_norm"); };

  auto cpu = tiny.start("cpu", kRun + validation);
  CHECK(cpu->run() == Trainer::End::completed);

  // The fifth step runs beside the copies of what the fourth left.
  const TinyTraining::Overrides saves =
      kRun + validation +
      words("--checkpoint.enable true --checkpoint.interval 4 --checkpoint.async_mode async_with_pinned_mem");
  {
    auto graphs = tiny.start_on(gpu, "graphs", saves);
    CHECK(graphs->run() == Trainer::End::completed);
    CHECK(graphs->engine().graphs().nodes() > 50);
    CHECK(graphs->experiment().decisions.find("gemm library") != nullptr);
  }
  REQUIRE(losses("graphs").size() == 6);
  for (size_t i = 0; i < 6; ++i) CHECK(losses("graphs")[i] == Approx(losses("cpu")[i]).epsilon(1e-5));
  const std::vector<double> validated = logged(tiny / "graphs", "validation_metrics/loss"),
                            validated_on_cpu = logged(tiny / "cpu", "validation_metrics/loss");
  REQUIRE(validated_on_cpu.size() == 4);  // steps 1, 2, 4 and 6
  REQUIRE(validated.size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK(validated[i] == Approx(validated_on_cpu[i]).epsilon(1e-4));
  CHECK(samples(tiny / "graphs").find("the text") != std::string::npos);
  CHECK(samples(tiny / "graphs") == samples(tiny / "cpu"));

  // The plain run follows the decisions of the first: every bit the same. It writes its steps in the place of
  // those of the first.
  const std::vector<double> loss = losses("graphs"), norm = norms("graphs");
  {
    auto again = tiny.start_on(gpu, "graphs", [&] {
      TinyTraining::Overrides o = saves;
      o.insert(o.end(), {"--checkpoint.load_step", "4", "--training.cuda_graphs", "off"});
      return o;
    }());
    CHECK(again->engine().graphs().is_enabled() == false);
    CHECK(again->state().step == 4);
    const auto& entries = again->experiment().decisions.entries;
    CHECK(std::ranges::count_if(entries, [](const auto& e) { return e.reason == "as decided before"; }) > 10);
    CHECK(again->run() == Trainer::End::completed);
  }
  CHECK(losses("graphs") == loss);
  CHECK(norms("graphs") == norm);
}

TEST_CASE(
    "a snapshot of a GPU's shards is taken beside its stream, unit by unit, before what comes behind its "
    "end") {
  if (!has_gpu()) return skip(kNoGpu);
  using namespace checkpoint;
  constexpr int64_t kRows = 96, kColumns = 64, kBytes = kRows * kColumns * 4;
  std::vector<ParameterSpec> specs;
  for (int unit : {0, 1, 1}) {
    const std::string name = "w" + std::to_string(specs.size());
    specs.push_back(
        {.name = name,
         .parts = {{.name = name, .hf_name = name + ".weight", .rows = kRows, .groups = kRows, .init = {}}},
         .columns = kColumns,
         .unit = unit});
  }
  const Device gpu{DeviceType::cuda, 0};
  Stream stream = Stream::cuda(0);
  const Buffer memory(gpu, 3 * kBytes);
  std::vector<float> values(3 * kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1009);
  cuda::copy(memory.data(), values.data(), 3 * kBytes, stream.native());
  TrainedParameters parameters{.specs = specs, .at = {}, .with_optimizer = false, .stream = &stream};
  for (int64_t p = 0; p < 3; ++p)
    parameters.shards.push_back({.weight = {DType::f32, static_cast<char*>(memory.data()) + p * kBytes}});
  CHECK(owned_bytes(parameters) == 3 * kBytes);
  const Layout layout = plan_layout(specs, layout_options_of(parameters));
  for (const Snapshot::Memory kind : {Snapshot::Memory::pinned, Snapshot::Memory::pageable}) {
    Snapshot snapshot(kind);
    snapshot.reserve(gpu, owned_bytes(parameters) + Snapshot::kGapBytes);
    for (int again = 0; again < 2; ++again) {
      cuda::copy(memory.data(), values.data(), 3 * kBytes, stream.native());
      const std::vector<HeldRun> runs = snapshot.take(layout, held_runs(layout, parameters), parameters);
      const Event* end = snapshot.end_of_copies();
      CHECK((end != nullptr) == (kind == Snapshot::Memory::pinned));
      REQUIRE(runs.size() == 3);
      // Nothing has waited for the stream that wrote the weights.
      if (again == 1) runs[0].arrived->synchronize();
      if (end) end->wait(stream);
      cuda::fill_zero(memory.data(), 3 * kBytes, stream.native());  // the update
      stream.synchronize();
      CHECK(runs[0].arrived != runs[1].arrived);
      CHECK(runs[1].arrived == runs[2].arrived);
      for (size_t r = 0; r < 3; ++r) {
        runs[r].arrived->synchronize();
        CHECK(std::memcmp(runs[r].memory.data, values.data() + r * kRows * kColumns, kBytes) == 0);
      }
    }
  }
}

TEST_CASE("FP8 on a GPU: which products are summed fast is what the configuration says") {
  if (!has_gpu()) return skip(kNoGpu);
  const TinyTraining tiny;
  auto fast = [&](const char* which, const char* recipe) {
    auto run =
        tiny.start_on({DeviceType::cuda, 0}, std::string(which) + recipe,
                      {"--training.steps", "1", "--training.mixed_precision_param", "bfloat16",
                       "--model.converters", "quantize.linear.float8", "--quantize.linear.float8.recipe_name",
                       recipe, "--quantize.linear.float8.fast_accumulation", which});
    int count = 0, all = 0;
    for (const Decisions::Entry& e : run->experiment().decisions.entries) {
      all += e.name.find("e4m3") != std::string::npos;
      count += e.name.find(" fast ") != std::string::npos;
    }
    CHECK(all > 0);
    CHECK(count <= all);
    return count == all ? std::string("all") : count > 0 ? "some" : "none";
  };
  CHECK(fast("forward", "tensorwise") == "some");
  CHECK(fast("all", "tensorwise") == "all");
  CHECK(fast("none", "tensorwise") == "none");
  CHECK(fast("all", "blockwise") == "none");
}

TEST_CASE("FP8 on a GPU: gradients that the library cannot accumulate are made apart and added") {
  if (!has_gpu() || cuda::device_name(0) != "host execution layer")
    return skip("there is no cuBLASLt to choose");
  const TinyTraining tiny;
  for (const char* recipe : {"rowwise", "blockwise"}) {
    INFO(recipe);
    auto train = [&](const std::string& name, bool in_two_steps) {
      const CapturedOutput log;
      auto run = tiny.start_on({DeviceType::cuda, 0}, name,
                               {"--training.steps", "4", "--training.global_batch_size", "6",
                                "--training.mixed_precision_param", "bfloat16", "--model.converters",
                                "quantize.linear.float8", "--quantize.linear.float8.recipe_name", recipe});
      CHECK(run->run() == Trainer::End::completed);
      CHECK((log.text().find("the sum is made in two steps") != std::string::npos) == in_two_steps);
      return logged(tiny / name, "loss_metrics/global_avg_loss");
    };
    const std::vector<double> one_step = train(std::string(recipe) + " accumulated", false);
    ::setenv("OTTAVA_CUDA_HOST_CUBLASLT", "no_fine_accumulation", 1);
    const std::vector<double> two_steps = train(std::string(recipe) + " added", true);
    ::unsetenv("OTTAVA_CUDA_HOST_CUBLASLT");
    REQUIRE(one_step.size() == 4);
    REQUIRE(two_steps.size() == one_step.size());
    for (size_t i = 0; i < one_step.size(); ++i) CHECK(two_steps[i] == Approx(one_step[i]).epsilon(1e-5));
  }
}

TEST_CASE("FP8 on a GPU: graphs change no bit, also once a history of amax is full") {
  if (!has_gpu()) return skip(kNoGpu);
  const TinyTraining tiny;
  for (const char* recipe : {"tensorwise", "delayed"}) {
    INFO(recipe);
    std::vector<double> loss[2], norm[2];
    for (const char* graphs : {"on", "off"}) {
      const std::string name = std::string(recipe) + graphs;
      TinyTraining::Overrides o =
          words(
              "--training.steps 6 --training.global_batch_size 6 --training.mixed_precision_param bfloat16 "
              "--model.converters quantize.linear.float8") +
          TinyTraining::Overrides{"--quantize.linear.float8.recipe_name", recipe, "--training.cuda_graphs",
                                  graphs};
      if (recipe == std::string("delayed"))
        o.insert(o.end(), {"--quantize.linear.float8.amax_history_length", "2"});
      auto run = tiny.start_on({DeviceType::cuda, 0}, name, o);
      CHECK(run->plan().flops(Precision::fp8) > 0);
      CHECK(run->run() == Trainer::End::completed);
      CHECK((run->engine().graphs().nodes() > 50) == (graphs[1] == 'n'));
      loss[graphs[1] == 'n'] = logged(tiny / name, "loss_metrics/global_avg_loss");
      norm[graphs[1] == 'n'] = logged(tiny / name, "grad_norm");
    }
    REQUIRE(loss[0].size() == 6);
    CHECK(loss[0][5] < loss[0][0]);
    CHECK(loss[1] == loss[0]);
    CHECK(norm[1] == norm[0]);
  }
}
