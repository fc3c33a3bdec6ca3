#include <algorithm>
#include <limits>
#include <sstream>

#include "apps/commands/plan_command.h"
#include "tests/apps/commands/planned.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

// What a plan is not made for, and what is said of it.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
using Catch::EndsWith;

TEST_CASE("a plan for what there is not is refused by name") {
  const auto refusal = [](PlanCommand command) { return message_of([&] { printed(command); }); };
  const Overrides small = small_model({});
  Overrides gpu = small_model_on_gpu({});
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h300"}}),
             Contains("[plan] --device 'h300' is unknown") && Contains("h100_sxm"));
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h100_sxm", .network = "wifi"}}),
             Contains("[plan] --network 'wifi' is unknown") && Contains("ib_400"));
  CHECK_THAT(refusal({.overrides = small, .machine = {.device = "h100_sxm"}}),
             Contains("--device h100_sxm is a GPU, but training.device is cpu: set --training.device cuda"));
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "a100_sxm", .compute_capability = 90}}),
             Contains("has compute capability 8.0, but --compute-capability is 9.0"));
  CHECK_THAT(refusal({.overrides = small, .machine = {.device = "cpu", .compute_capability = 90}}),
             Contains("[plan] --compute-capability is for GPUs, but this plan is for a CPU"));
  for (const double limit :
       {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h100_sxm", .limit_gib = limit}}),
               Contains(fmt::format("[plan] --limit-gib is {}, expected a number > 0", limit)));
  }
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h100_sxm"}, .top = 3}),
             Contains("[plan] --top sets how many layouts --search shows: add --search"));
  CHECK_THAT(refusal({.overrides = gpu,
                      .machine = {.device = "h100_sxm"},
                      .fixed = {"parallelism.tensor_parallel_degree=8"}}),
             Contains("[plan] --fix says what --search keeps: add --search, or set the key with "
                      "--parallelism.tensor_parallel_degree VALUE"));
  Overrides narrow = gpu;
  narrow.insert(narrow.end(), {"--model.head_dim", "24"});
  CHECK_THAT(refusal({.overrides = narrow, .machine = {.device = "h100_sxm"}}),
             Contains("[model] head_dim is 24, but attention on a GPU supports 16, 32, 64 and 128"));
  Overrides tp = gpu;
  tp.insert(tp.end(), {"--parallelism.tensor_parallel_degree", "3"});
  CHECK_THAT(refusal({.overrides = tp, .world_size = 4, .machine = {.device = "h100_sxm"}}),
             Contains("[mesh]"));
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h100_sxm", .calibration = {"/nowhere.json"}}}),
             Contains("/nowhere.json"));
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h100_sxm"}, .json = "/nowhere/plan.json"}),
             Contains("cannot write /nowhere/plan.json: No such file or directory"));
  Overrides automatic = small;
  *(std::ranges::find(automatic, "--training.device") + 1) = "auto";  // --device says what it is for
  CHECK_THAT(printed({.overrides = automatic, .machine = {.device = "h100_sxm"}}),
             Contains("planned for NVIDIA H100"));
}

TEST_CASE("what needs times is refused for a GPU that no table has, before anything is printed") {
  const Overrides gpu = small_model_on_gpu({});
  const TemporaryFolder folder;
  const auto refusal = [&](PlanCommand command) {
    command.overrides = gpu;
    command.machine.compute_capability = 87;
    std::ostringstream out;
    const std::string message = message_of([&] { run_plan_command(command, out); });
    CHECK(out.str().empty());
    return message;
  };
  const auto needs_times = [](const std::string& option) {
    return Contains("[plan] " + option + " needs times, but no table has this GPU: set --device to a table");
  };
  CHECK_THAT(refusal({.work = PlanCommand::Work::search}), needs_times("--search"));
  CHECK_THAT(refusal({.trace = folder / "trace.json"}), needs_times("--trace"));
  CHECK_THAT(refusal({.machine = {.network = "ib_400"}}), needs_times("--network"));
  CHECK_THAT(refusal({.machine = {.ranks_per_node = 4}}), needs_times("--gpus-per-node"));
  CHECK_THAT(refusal({.machine = {.calibration = {"bench.json"}}}), needs_times("--calibration"));
}

TEST_CASE("a plan refuses a chat template whose special tokens the tokenizer lacks, as a run does") {
  const std::string source = OTTAVA_SOURCE_DIR;
  const auto plan = [&](const std::string& assets, const Overrides& more) {
    const Overrides chats{"--training.format",      "messages",     "--chat.template",        "llama3",
                          "--model.attn_mask_type", "block_causal", "--model.hf_assets_path", assets};
    return PlanCommand{.overrides = changed_to(changed_to(small_model({}), chats), more)};
  };
  // Also where the tokenizer is not needed for the size of the vocabulary.
  for (const char* vocabulary : {"0", "2560"}) {
    const Overrides size{"--model.vocab_size", vocabulary};
    INFO(vocabulary);
    const auto refusal = [&](const Overrides& more) {
      return message_of(
          [&] { printed(plan(source + "/configs/tokenizers/en-2256", changed_to(size, more))); });
    };
    for (const Overrides& more :
         {Overrides{}, Overrides{"--training.format", "text", "--validation.enable", "true",
                                 "--validation.datasets", "[{name: a, path: x, format: sharegpt}]"}})
      CHECK_THAT(
          refusal(more),
          Contains("[chat] the tokenizer has no special tokens <|start_header_id|>, <|end_header_id|>, "
                   "<|eot_id|>, which the template llama3 needs"));
    CHECK(refusal({"--training.format", "text"}) == "no error");
    CHECK_THAT(printed(plan(source + "/tests/golden/chat/llama", size)), Contains("parameters, vocabulary"));
  }
  CHECK_THAT(printed(plan("nowhere", {})), Contains("parameters, vocabulary 320"));
}

TEST_CASE("a plan refuses what a run on such a device refuses at its start") {
  const auto refusal = [](const Overrides& base, const Overrides& keys, int ranks) {
    return message_of([&] { printed({.overrides = changed_to(base, keys), .world_size = ranks}); });
  };
  const Overrides cpu = small_model({}), gpu = small_model_on_gpu({});
  const Overrides stages = words(
      "--parallelism.pipeline_parallel_degree 2 --training.local_batch_size 2 --training.cuda_graphs on "
      "--comm.backend nccl");
  CHECK_THAT(refusal(cpu, {"--training.cuda_graphs", "on"}, 1),
             Contains("[training] cuda_graphs is on, but the device is cpu: set it to auto or off"));
  CHECK(refusal(gpu, {"--training.cuda_graphs", "on"}, 1) == "no error");
  CHECK_THAT(refusal(gpu, stages, 2), Contains("[training] cuda_graphs is on, but pipeline parallelism"));
  const auto through_host = [](const std::string& transport) {
    return Contains("[training] cuda_graphs is on, but ranks exchange tensors through host memory (" +
                    transport + "), which a graph cannot contain: set it to auto or off");
  };
  for (const std::string backend : {"tcp", "mpi", "nccl", "auto"}) {
    const Overrides graphs{"--training.cuda_graphs", "on", "--comm.backend", backend};
    const bool is_host = backend == "tcp" || backend == "mpi";
    CHECK_THAT(refusal(gpu, graphs, 2), is_host ? through_host(backend) : Contains("no error"));
    CHECK(refusal(gpu, graphs, 1) == "no error");
  }
  CHECK_THAT(refusal(cpu, {"--comm.sm_budget", "8"}, 1),
             Contains("[comm] sm_budget is 8, but the device is cpu, which has no SMs: set it to 0"));
  CHECK(refusal(gpu, {"--comm.sm_budget", "8"}, 2) == "no error");
  CHECK_THAT(refusal(cpu, {"--comm.backend", "nccl"}, 2),
             Contains("[world] comm.backend is nccl, but the device is cpu") &&
                 EndsWith("; to plan for GPUs, name one with --device"));
  CHECK(refusal(gpu, {"--comm.backend", "nccl"}, 2) == "no error");
  const Overrides traced{"--profiling.enable_profiling", "true", "--profiling.profile_ranks", "0,3"};
  CHECK_THAT(refusal(cpu, traced, 2),
             Contains("[profiling] profile_ranks contains rank 3, expected ranks 0 to 1"));
  CHECK(refusal(cpu, traced, 4) == "no error");
  CHECK(refusal(cpu, traced, 0) == "no error");  // a run may have more than the fewest
}

TEST_CASE("a plan refuses a vocabulary smaller than that of the tokenizer, as a run does") {
  const auto plan = [](const std::string& assets, const std::string& vocabulary) {
    const Overrides keys{"--model.hf_assets_path", assets, "--model.vocab_size", vocabulary};
    return message_of([&] { printed({.overrides = changed_to(small_model({}), keys)}); });
  };
  const std::string tokenizer = OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256";
  CHECK_THAT(plan(tokenizer, "2255"),
             Contains("[model] vocab_size 2255 is smaller than the tokenizer's 2256, whose largest ids"));
  CHECK(plan(tokenizer, "2256") == "no error");
  CHECK(plan("nowhere", "320") == "no error");
  CHECK(plan(OTTAVA_SOURCE_DIR "/configs", "320") == "no error");  // a folder without a tokenizer
}
