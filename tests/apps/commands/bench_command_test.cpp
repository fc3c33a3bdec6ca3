#include <chrono>
#include <filesystem>
#include <sstream>

#include "apps/commands/bench_command.h"
#include "models/step_context.h"
#include "parallel/sharding/repeated_weights.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
#include "tests/support/tiny_training.h"

// `ottava bench train`: what it measures with, and what it says on a CPU and on a GPU.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

std::string bench(const TinyTraining& tiny, Device device, const std::string& weights,
                  const Overrides& more = {}, int saves = 0) {
  const char* type = device.type == DeviceType::cuda ? "cuda" : "cpu";
  const BenchCommand command{
      .file = "",
      .overrides = tiny.model_and_text("bench") + Overrides{"--training.device", type} + more,
      .steps = 2,
      .weights = weights,
      .saves = saves};
  std::ostringstream out;
  const int code = run_bench_command(command, out);  // throws what a case expects
  CHECK(code == 0);
  return out.str();
}

// Whatever the machine did besides: the times are of one mean step, and nothing uses more than all of it. On
// the host execution layer events measure times that the stand-ins set, not those of the step: only the sum
// holds.
void check_shares(const std::string& said, bool times_are_real) {
  std::istringstream lines(said.substr(said.find("\noperation ") + 1));
  double shares = 0;
  int rows = 0;
  const auto number_before = [](const std::string& line, size_t end) {
    return std::stod(line.substr(line.rfind(' ', end - 1) + 1));
  };
  std::string line;
  std::getline(lines, line);
  while (!line.starts_with("outside operations") && std::getline(lines, line)) {
    const size_t percent = line.find('%');
    REQUIRE(percent != std::string::npos);
    const double share = number_before(line, percent);
    if (times_are_real) CHECK(share >= 0);
    if (times_are_real && percent + 1 < line.size()) CHECK(number_before(line, line.size() - 1) <= 100);
    shares += share;
    ++rows;
  }
  CHECK(rows > 10);
  CHECK(std::abs(shares - 100) <= 0.05 * (rows + 1));
}

void spin(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
  }
}

}  // namespace

TEST_CASE("bench train: steps, operations and memory of the device") {
  const TinyTraining tiny;
  for (Device device : devices()) {
    const std::string said = bench(tiny, device, "drawn");
    INFO(said);
    for (const char* part : {"step: median ", " of 2\n", "tokens/s: ", "model FLOPs: ", "attention.wqkv ",
                             "optimizer ", "outside operations", "utilization: ", "memory: plan "}) {
      CHECK_THAT(said, Contains(part));
    }
    const bool on_gpu = device.type == DeviceType::cuda;
    CHECK_THAT(said, Contains(on_gpu ? "CUDA graphs: on\n" : "CUDA graphs: off\n"));
    CHECK_THAT(said, Contains(on_gpu ? " GiB in use on the GPU, " : "; resident grew by "));
    CHECK((said.find("without graphs, in a step of ") != std::string::npos) == on_gpu);
    check_shares(said, said.find("host execution layer") == std::string::npos);
    CHECK(said.find("initial weights") == std::string::npos);
    CHECK_THAT(bench(tiny, device, "repeated",
                     {"--training.cuda_graphs", "off", "--attention.backend", "flash",
                      "--model.loss_chunk_tokens", "48"}),
               Contains("initial weights: 1000003 random values of each tensor, repeated\n") &&
                   Contains("\nattention: flash; loss: 48 tokens at a time\n") &&
                   Contains("CUDA graphs: off\n"));
  }
  std::ostringstream out;
  CHECK_THROWS_WITH(run_bench_command({.file = "", .overrides = {}, .weights = "none"}, out),
                    Contains("[bench] --weights is 'none', expected drawn or repeated"));
}

TEST_CASE("bench train: FP8 steps whose amax history is full, or that it says still fill one") {
  const TinyTraining tiny;
  for (Device device : devices()) {
    for (const auto& [length, fills] : {std::pair{"2", false}, {"1024", true}}) {
      const std::string said = bench(tiny, device, "repeated",
                                     {"--training.mixed_precision_param", "bfloat16", "--model.converters",
                                      "quantize.linear.float8", "--quantize.linear.float8.recipe_name",
                                      "delayed", "--quantize.linear.float8.amax_history_length", length});
      INFO(said);
      CHECK_THAT(said, Contains(device.is_gpu() ? "CUDA graphs: on\n" : "CUDA graphs: off\n"));
      CHECK((said.find("\nFP8 scales: each tensor's own, as in the first 1024 steps of recipe delayed; later "
                       "ones are measured with quantize.linear.float8.amax_history_length 1\n") !=
             std::string::npos) == fills);
    }
  }
}

TEST_CASE("bench train: what making FP8 operands takes has rows, and a sum") {
  const std::string said = bench(TinyTraining(), {DeviceType::cpu, 0}, "drawn",
                                 {"--model.converters", "[quantize.linear.float8]", "--model.dim", "128",
                                  "--model.ffn_dim", "256", "--training.seq_len", "128"});
  INFO(said);
  for (const char* row : {"\nweights.quantize ", "\nattention.wqkv.quantize ", "\nattention.wo.quantize ",
                          "\nfeed_forward.w13.quantize ", "\nfeed_forward.w2.quantize "})
    CHECK_THAT(said, Contains(row));
  const std::string sum = "FP8: amaxes, quantizing and transposing took ";
  const size_t at = said.find(sum);
  REQUIRE(at != std::string::npos);
  CHECK(std::stod(said.substr(at + sum.size())) > 0);  // milliseconds
  // Rows of layers find what the plan says that they compute.
  std::istringstream row(said.substr(said.find("\nattention.wqkv ")));
  std::string name, share;
  double milliseconds = 0, gflops = 0;
  row >> name >> milliseconds >> share >> gflops;
  CHECK(gflops > 0);
}

TEST_CASE("bench train: steps with an asynchronous save in flight, of which nothing stays") {
  const TinyTraining tiny;
  for (Device device : devices()) {
    const std::string plain = bench(tiny, device, "drawn", {"--profiling.enable_profiling", "true"});
    CHECK(plain.find("asynchronous save") == std::string::npos);
    CHECK_FALSE(std::filesystem::exists(tiny / "bench"));
    for (const char* mode : {"async", "async_with_pinned_mem"}) {
      const std::string said =
          bench(tiny, device, "drawn",
                {"--checkpoint.enable", "true", "--checkpoint.async_mode", mode, "--checkpoint.load_only",
                 "true", "--checkpoint.load_step", "2", "--checkpoint.advance_data_steps", "1"},
                3);
      INFO(said);  // of a file whose runs save nothing or go back to a step of theirs, too
      CHECK_THAT(said, Contains(std::string("asynchronous save (") + mode + "): step ") &&
                           Contains(" s with one in flight, ") && Contains("%), medians of 3; begun in ") &&
                           Contains(" s later; snapshot 0.00") && !Contains("snapshot 0.000") &&
                           Contains(" s to begin, ") && Contains(" s to write, ") &&
                           Contains("% of a step's "));
    }
    CHECK(std::filesystem::is_empty(tiny / "bench"));
    // Nor where the trainer fails after it has made the folder.
    CHECK_THROWS_WITH(
        bench(tiny, device, "drawn",
              {"--checkpoint.enable", "true", "--checkpoint.initial_load_path", tiny / "none"}, 1),
        Contains("none"));
    CHECK(std::filesystem::is_empty(tiny / "bench"));
    std::filesystem::remove(tiny / "bench");
  }
}

TEST_CASE("repeated weights are the first drawn ones, again and again") {
  constexpr int64_t kValues = 7;
  for (Device device : devices()) {
    const TrainingShape shape = tiny_shape(tiny_llama(), 1, 8);
    EngineRun drawn(shape, device), repeated(shape, device);
    drawn->parameters().initialise(3);
    initialise_by_repetition(repeated.stream(), repeated->parameters(), 3, kValues);
    Fsdp& parameters = repeated->parameters();
    for (size_t p = 0; p < parameters.specs().size(); ++p) {
      const ParameterSpec& spec = parameters.specs()[p];
      INFO(spec.name);
      const ParameterShard& shard = parameters.shard(static_cast<int>(p));
      const auto all = drawn.values(drawn->parameters().shard(static_cast<int>(p)).master),
                 few = repeated.values(shard.master);
      for (const ShardRun& run : shard_runs(spec, parameters.coordinates())) {
        const auto begin = static_cast<size_t>(run.local_row * spec.columns);
        const auto count = static_cast<size_t>((run.row_end - run.row_begin) * spec.columns);
        size_t wrong = 0;
        for (size_t i = 0; i < count; ++i) wrong += few[begin + i] != all[begin + i % kValues];
        CHECK(wrong == 0);
      }
      for (const Tensor& moment : {shard.moments[Moment::exp_avg], shard.moments[Moment::exp_avg_sq]})
        CHECK((repeated.values(moment) == std::vector<float>(few.size(), 0.0f)));
      if (shard.has_compute_copy) CHECK((repeated.values(shard.compute) == few));
    }
  }
}

TEST_CASE("a profile counts the time of a nested scope once") {
  Stream stream = Stream::cpu();
  StepProfile profile(stream);
  const auto begin = std::chrono::steady_clock::now();
  profile.enter("outer");
  spin(0.002);
  profile.enter("inner");
  spin(0.02);
  profile.leave();
  profile.leave();
  double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  spin(0.02);  // belongs to nothing
  const auto again = std::chrono::steady_clock::now();
  profile.enter("outer");
  profile.leave();
  wall += std::chrono::duration<double>(std::chrono::steady_clock::now() - again).count();
  const auto& seconds = profile.seconds();
  CHECK(seconds.size() == 2);
  CHECK(seconds.at("outer") >= 0.002);
  CHECK(seconds.at("inner") >= 0.02);
  CHECK(seconds.at("outer") + seconds.at("inner") <= wall + 1e-6);
}
