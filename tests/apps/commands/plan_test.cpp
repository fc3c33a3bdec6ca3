#include "apps/commands/plan_command.h"
#include "apps/config/resolved_layout.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "apps/decide/decide.h"
#include "apps/predict/memory_moves.h"
#include "apps/predict/sample_step.h"
#include "core/counted.h"
#include "core/cpu/bf16_products.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/metrics/step_line.h"
#include "core/threads_for.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "parallel/ranks/launch.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/traffic_formula.h"

// A plan is made without ranks, and holds for those that train.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

const Device kCpu{DeviceType::cpu, 0};

using Overrides = std::vector<std::string>;

/// The smallest model that is cut in every way: matrices that travel by themselves and packed ones.
Overrides small_model(Overrides more) {
  for (const char* text :
       {"--model.dim", "128", "--model.n_layers", "2", "--model.n_heads", "4", "--model.n_kv_heads", "4",
        "--model.ffn_dim", "256", "--model.vocab_size", "320", "--training.device", "cpu",
        "--training.seq_len", "32", "--training.local_batch_size", "1"})
    more.emplace_back(text);
  return more;
}

/// The same on a GPU that need not be here.
Overrides small_model_on_gpu(Overrides more) {
  Overrides overrides = small_model(std::move(more));
  overrides.insert(overrides.end(), {"--training.device", "cuda"});
  return overrides;
}

/// `overrides` with these in place of those for the same keys.
Overrides changed_to(const Overrides& overrides, const Overrides& changed) {
  Overrides all;
  for (size_t i = 0; i < overrides.size(); i += 2) {
    if (std::ranges::find(changed, overrides[i]) == changed.end())
      all.insert(all.end(), {overrides[i], overrides[i + 1]});
  }
  all.insert(all.end(), changed.begin(), changed.end());
  return all;
}

StepPlan planned(const Experiment& e, const TrainingShape& shape, int rank) {
  const int ranks = e.mesh.world_size();
  RankGroups groups(make_dry_run_world(rank, ranks), make_dry_run_world(rank, ranks), e.mesh);
  return record_step(shape, kCpu, groups);
}

/// Ranks that train this shape have the memory, make the calls and send the bytes of the plan.
void require_as_planned(const Experiment& e, const TrainingShape& shape) {
  const test::Layout layout{.dp_replicate = e.mesh.size(MeshAxis::dp_replicate),
                            .dp_shard = e.mesh.size(MeshAxis::dp_shard),
                            .tp = e.mesh.size(MeshAxis::tp),
                            .micro_batches = shape.micro_batches};
  TrainingShape whole = shape;
  whole.batch *= layout.data_ranks() * layout.micro_batches;
  const LayoutCurve curve = train_on(whole, layout, 1, kCpu);
  require_traffic_of_formula(whole, layout, curve);
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    INFO("rank " << rank);
    const StepPlan plan = planned(e, shape, rank);
    CHECK(sent_totals(plan.traffic) == sent_totals(curve.measured[static_cast<size_t>(rank)]));
    CHECK(plan.memory.total_bytes() == curve.memory[static_cast<size_t>(rank)].total_bytes());
  }
}

std::string printed(const PlanCommand& command) {
  std::ostringstream out;
  run_plan_command(command, out);
  return out.str();
}

}  // namespace

TEST_CASE("a plan of several micro-batches says what ranks send, whichever way memory lets them decide") {
  set_parallel_threads(1);
  const Overrides overrides = small_model({"--training.global_batch_size", "8"});
  const Experiment e = resolve_experiment(load_config("", overrides), nullptr, 2);
  REQUIRE(e.shape.micro_batches == 4);
  const std::vector<OpenDecision> open = open_decisions(e);
  REQUIRE(open.size() == 1);
  CHECK(open[0].name == "parallelism.fsdp_reduce_every_microbatch");
  REQUIRE(open[0].outcomes.size() == 2);
  const std::string text = printed({.file = {}, .overrides = overrides, .world_size = 2});
  CHECK_THAT(text,
             Contains("Left to the run: parallelism.fsdp_reduce_every_microbatch, decided by the memory "
                      "that is free; this plan is the first of\n"));
  std::vector<int64_t> calls;
  for (const auto& [value, shape] : open[0].outcomes) {
    INFO(value);
    require_as_planned(e, shape);
    const CommStats traffic = planned(e, shape, 0).traffic;
    calls.push_back(traffic.calls());
    CHECK_THAT(text,
               Contains("  " + value) && Contains(with_commas(traffic.sent_bytes()) + " bytes sent in " +
                                                  counted(traffic.calls(), "call") + "\n"));
  }
  CHECK(open[0].outcomes[0].value == "false");
  CHECK_FALSE(e.shape.parameters.reduce_every_micro_batch);
  CHECK_THAT(text, Contains(fmt::format("GiB sent in {} calls\n", calls[0])));
  // Each unit is reduced three times more: w13, w2 and wqkv and the pack of wo and norms of two blocks, the
  // embedding, and the output layer with the last norm.
  CHECK(calls[1] - calls[0] == 3 * (2 * 4 + 1 + 2));
}

TEST_CASE("what is not open is planned as it is, and what a GPU measures is named with both ends") {
  for (const Overrides& decided :
       {Overrides{"--training.global_batch_size", "8", "--parallelism.fsdp_reduce_every_microbatch", "true"},
        Overrides{"--training.global_batch_size", "2"},
        Overrides{"--training.global_batch_size", "8", "--parallelism.data_parallel_replicate_degree",
                  "2"}}) {
    const Experiment e = resolve_experiment(load_config("", small_model(decided)), nullptr, 2);
    CHECK(open_decisions(e).empty());
    CHECK(e.shape.parameters.reduce_every_micro_batch);
  }
  Overrides measured = small_model(
      {"--model.converters", "[quantize.linear.float8]", "--quantize.linear.float8.auto", "true"});
  measured.insert(measured.end(), {"--training.device", "cuda"});
  const std::string text =
      printed({.file = {}, .overrides = measured, .machine = {.compute_capability = 90}});
  CHECK_THAT(text,
             Contains("Left to the run: quantize.linear.float8.auto, decided by the time of each shape on "
                      "the GPU; this plan is the first of\n  FP8 for every shape ") &&
                 Contains("\n  FP8 for none ") && Contains("TFLOP in fp8, "));
  const Experiment e = resolve_experiment(load_config("", measured), nullptr, 1, 90);
  const std::vector<OpenDecision> open = open_decisions(e);
  REQUIRE(open.size() == 1);
  CHECK(planned(e, open[0].outcomes[0].shape, 0).flops(Precision::fp8) ==
        planned(e, e.shape, 0).flops(Precision::fp8));
  CHECK(planned(e, open[0].outcomes[0].shape, 0).flops(Precision::fp8) > 0);
  CHECK(planned(e, open[0].outcomes[1].shape, 0).flops(Precision::fp8) == 0);
}

TEST_CASE("a plan says whether it fits, what takes less and what that costs, and how long a step takes") {
  const Overrides big{"--model.flavor",
                      "8B",
                      "--model.vocab_size",
                      "128256",
                      "--training.seq_len",
                      "8192",
                      "--training.local_batch_size",
                      "1",
                      "--activation_checkpoint.mode",
                      "none",
                      "--training.device",
                      "cuda"};
  const auto text = [&](PlanCommand command) {
    command.overrides.insert(command.overrides.begin(), big.begin(), big.end());
    return printed(command);
  };
  const std::string fits = text({.world_size = 64, .machine = {.device = "h100_sxm"}});
  CHECK_THAT(fits, Contains("planned for NVIDIA H100 SXM 80 GB") && Contains("\nFits: ") &&
                       Contains(" GiB to spare\n") && Contains("\nTime per step: ") &&
                       Contains("; h100_sxm, mean error 25%)") && Contains("    products bf16 ") &&
                       Contains("    dp_shard all_gather ") &&
                       Contains("; 8 ranks a machine, network ib_400\n") &&
                       Contains("  not in it: stragglers"));
  const std::string full = text({.world_size = 8, .machine = {.device = "h100_sxm", .limit_gib = 45}});
  CHECK_THAT(full, Contains("\nDOES NOT FIT: ") && Contains(" and 45.0 are there (--limit-gib)") &&
                       Contains("\nWhat takes less, by what it costs for a GiB (each recorded):\n") &&
                       Contains("activation_checkpoint.mode: full") &&
                       Contains("optimizer.state_dtype: bfloat16") && Contains("; fits, ") &&
                       !Contains("none of them fits"));
  CHECK_THAT(text({.world_size = 1, .machine = {.device = "rtx_4090", .limit_gib = 0.5}}),
             Contains("none of them fits; the closest lacks "));
  const std::string float8 = text({.overrides = {"--model.converters", "[quantize.linear.float8]"},
                                   .world_size = 8,
                                   .machine = {.device = "h100_sxm"}});
  CHECK_THAT(
      float8,
      Contains(
          "\nFP8 all-gather (quantize.linear.float8.enable_fsdp_float8_all_gather, off):\n  with it  ") &&
          Contains("\n  without, codes kept through the step ") &&
          Contains("\n  without, gathered again for backward ") && Contains("; saved by it: ") &&
          Contains("    products fp8 "));
  CHECK_THAT(text({.world_size = 1, .machine = {.compute_capability = 86}}),
             Contains("no table has this GPU; --device names one") && !Contains("Time per step"));
}

TEST_CASE("each move of memory is what recording the changed configuration says") {
  const Overrides overrides =
      small_model_on_gpu({"--training.global_batch_size", "16", "--activation_checkpoint.mode", "none",
                          "--training.local_batch_size", "4"});
  const Config config = load_config("", overrides);
  const PlannedExperiment planned = plan_experiment(config, 2, 90);
  const LayoutRecorder recorder(config, planned, nullptr);
  const RecordedLayout from = recorder.record(layout_of(planned.experiment));
  CHECK(from.plan.memory.total_bytes() ==
        record_first_rank(planned.experiment.shape, planned.device, planned.experiment.mesh)
            .memory.total_bytes());
  const std::vector<MemoryMove> moves = memory_moves(from, 0.9 * from.gib(), recorder);
  REQUIRE(moves.size() >= 4);
  for (const MemoryMove& move : moves) {
    Overrides changed;
    for (const auto& [key, value] : move.keys) changed.insert(changed.end(), {"--" + key, value});
    INFO(options_text(move.keys));
    const Overrides all = changed_to(overrides, changed);
    const Experiment e =
        plan_experiment(load_config("", all), static_cast<int>(move.after.layout.ranks()), 90).experiment;
    CHECK(record_first_rank(e.shape, planned.device, e.mesh).memory.total_bytes() ==
          move.after.plan.memory.total_bytes());
    CHECK(move.after.gib() < from.gib());
  }
}

TEST_CASE("plan --search prints keys that make the layout it found, for people and programs") {
  const TemporaryFolder folder;
  const Overrides overrides = small_model_on_gpu({"--training.global_batch_size", "16"});
  const std::string file = folder / "plan.json";
  const std::string text = printed({.overrides = overrides,
                                    .world_size = 4,
                                    .machine = {.device = "h100_sxm"},
                                    .work = PlanCommand::Work::search,
                                    .top = 3,
                                    .json = file});
  CHECK_THAT(text, Contains(" layouts of 4 ranks, ") &&
                       Contains(" recorded in full; each may take 77.1 GiB") && Contains("\n  1 ") &&
                       Contains("\n  3 ") && !Contains("\n  4 ") &&
                       Contains("\nOf pipelines the file's was tried, and what --fix ") &&
                       Contains("\nThe first:\n  --parallelism.data_parallel_replicate_degree "));
  const Json report = Json::parse(read_file(file), "plan");
  const Json::Array& layouts = report.at("layouts", "plan").as_array("layouts");
  REQUIRE(layouts.size() == 3);
  CHECK(report.at("schema", "plan").as_string("schema") == "ottava plan 1");
  CHECK(report.at("device", "plan").as_string("device") == "h100_sxm");
  Overrides found;
  for (const auto& [key, value] : layouts[0].at("keys", "plan").as_object("keys"))
    found.insert(found.end(), {"--" + key, value.as_string("value")});
  const PlannedExperiment planned = plan_experiment(load_config("", changed_to(overrides, found)), 4, 90);
  const StepPlan plan = record_first_rank(planned.experiment.shape, planned.device, planned.experiment.mesh);
  CHECK(layouts[0].at("memory_gib", "plan").as_number("memory") ==
        Approx(static_cast<double>(plan.memory.total_bytes()) / (1 << 30)));
  CHECK(layouts[0].at("traffic", "plan").at("sent_bytes", "plan").as_integer("sent") ==
        plan.traffic.sent_bytes());
  const Json& time = layouts[0].at("time", "plan");
  CHECK(time.at("low", "time").as_number("low") < time.at("median", "time").as_number("median"));
  CHECK(time.at("median", "time").as_number("median") <=
        layouts[1].at("time", "plan").at("median", "time").as_number("median"));
  CHECK(layouts[0].at("reason", "plan").as_string("reason").empty());
  CHECK_FALSE(layouts[1].at("reason", "plan").as_string("reason").empty());
  CHECK_THAT(printed({.overrides = overrides,
                      .world_size = 4,
                      .machine = {.device = "h100_sxm", .limit_gib = 0.0001},
                      .work = PlanCommand::Work::search}),
             Contains("NONE FITS; the closest takes ") && Contains(" too much: ") &&
                 Contains("\n  --parallelism.data_parallel_replicate_degree "));
}

TEST_CASE("a plan of a pipeline has all its ranks, its schedule and the time of all of them together") {
  const TemporaryFolder folder;
  const std::string file = folder / "plan.json";
  const std::string text =
      printed({.overrides = changed_to(small_model_on_gpu({"--parallelism.pipeline_parallel_degree", "4"}),
                                       {"--model.n_layers", "6", "--training.local_batch_size", "8",
                                        "--training.seq_len", "1024"}),
               .world_size = 4,
               .machine = {.device = "h100_sxm"},
               .json = file});
  INFO(text);
  CHECK_THAT(text,
             Contains("Pipeline: 1F1B, 4 ranks with 1 stage each, 8 micro-batches: 27.3% of the time idle"));
  CHECK_THAT(text, Contains("embedding, layer 0; 4 micro-batches in flight at most"));
  CHECK_THAT(text, Contains("layer 5, head; 1 micro-batch in flight at most"));
  CHECK_THAT(text, Contains("\nrank 0   0123......aA4bB5"));
  CHECK_THAT(text, Contains("pp recv"));
  const Json report = Json::parse(read_file(file), "plan");
  const Json& row = report.at("layouts", "plan").as_array("layouts").at(0);
  const Json& time = row.at("time", "row");
  const double idle = time.at("idle_share", "time").as_number("idle");
  CHECK(idle > 0.05);
  CHECK(idle < 0.9);
  CHECK(time.at("median", "time").as_number("median") > time.at("compute", "time").as_number("compute"));
  CHECK(row.at("keys", "row").at("parallelism.pipeline_parallel_degree", "keys").as_string("degree") == "4");
}

TEST_CASE("the utilization of a pipeline is the mean of its ranks'") {
  const TemporaryFolder folder;
  const std::string file = folder / "plan.json";
  // The output layer makes the last rank compute several times what the first does.
  const Overrides overrides = changed_to(
      small_model_on_gpu({"--parallelism.pipeline_parallel_degree", "2"}),
      {"--model.vocab_size", "32000", "--training.local_batch_size", "8", "--training.seq_len", "1024"});
  const std::string text =
      printed({.overrides = overrides, .world_size = 2, .machine = {.device = "h100_sxm"}, .json = file});
  const PlannedExperiment planned = plan_experiment(load_config("", overrides), 2, 90);
  const std::vector<StepPlan> roles =
      sample_roles(planned.experiment.shape, planned.device, planned.experiment.mesh);
  REQUIRE(roles.size() == 2);
  const DeviceTable device = find_device("h100_sxm");
  const auto ideal_seconds = [&](const StepPlan& plan) {
    return (plan.flops(Precision::fp32) / device.fp32_tflops +
            plan.flops(Precision::bf16) / device.bf16_tflops) /
           1e12;
  };
  REQUIRE(ideal_seconds(roles[1]) > 2 * ideal_seconds(roles[0]));
  const double seconds = Json::parse(read_file(file), "plan")
                             .at("layouts", "plan")
                             .as_array("layouts")
                             .at(0)
                             .at("time", "row")
                             .at("median", "time")
                             .as_number("median");
  CHECK_THAT(text,
             Contains(fmt::format(", util {:.1f}%\n",
                                  100 * (ideal_seconds(roles[0]) + ideal_seconds(roles[1])) / 2 / seconds)));
}

TEST_CASE("4,096 ranks on all five axes are planned, every rank of the pipeline") {
  const std::string text =
      printed({.file = OTTAVA_SOURCE_DIR "/configs/llama3_405b.yaml",
               .overrides = {"--parallelism.pipeline_parallel_degree", "8",
                             "--parallelism.data_parallel_replicate_degree", "2",
                             "--parallelism.context_parallel_degree", "4", "--training.local_batch_size", "8",
                             "--training.global_batch_size", "128", "--model.converters", "[]"},
               .world_size = 4096,
               .machine = {.device = "h100_sxm"}});
  INFO(text);
  CHECK_THAT(text, Contains("Ranks: 4096 (pp 8 x dp_replicate 2 x dp_shard 8 x cp 4 x tp 8 = 4096)"));
  CHECK_THAT(text, Contains("\n  7:") && Contains("layers 111 to 125, head"));
  for (const char* axis : {"pp", "dp_replicate", "dp_shard", "cp", "tp"})
    CHECK_THAT(text, Contains(fmt::format("\n  {:14} ", axis)));
  CHECK_THAT(text, Contains("Fits: ") && Contains("ranks of the pipeline compute nothing in "));
}

TEST_CASE("262,144 tokens of the 8B shape fit on 8 ranks that share the sequence") {
  for (const auto& [mask, whose] :
       {std::pair{"causal", "attention by cuDNN"}, std::pair{"block_causal", "attention by our kernels"}}) {
    const std::string text =
        printed({.file = OTTAVA_SOURCE_DIR "/configs/llama3_8b.yaml",
                 .overrides = {"--parallelism.context_parallel_degree", "8", "--training.seq_len", "262144",
                               "--training.local_batch_size", "1", "--training.global_batch_size", "1",
                               "--activation_checkpoint.mode", "full", "--model.attn_mask_type", mask},
                 .world_size = 8,
                 .machine = {.device = "h100_sxm"}});
    INFO(text);
    CHECK_THAT(text, Contains("cp 8") && Contains("Fits: ") && Contains(whose));
    CHECK_THAT(text, Contains("Context parallel: 8 ranks share each sequence; keys and values of 2 of 8 "
                              "key/value heads at a time, those of the next ones travel beside attention\n"));
    // 262,144 tokens, 2 heads of 128, two bytes each of dK and dV.
    const std::string more = "cuDNN's attention takes 0.250 GiB more";
    CHECK((text.find(more) != std::string::npos) == (std::string(mask) == "causal"));
  }
}

TEST_CASE("a plan says where context parallel ranks have nothing to hide their transfers behind") {
  const auto plan = [](const char* tp) {
    return printed({.overrides = changed_to(small_model_on_gpu({"--parallelism.context_parallel_degree", "2",
                                                                "--parallelism.tensor_parallel_degree", tp}),
                                            {"--training.seq_len", "1024", "--model.n_kv_heads", "2"}),
                    .world_size = 4,
                    .machine = {.device = "h100_sxm"}});
  };
  CHECK_THAT(plan("1"), Contains("keys and values of 1 of 2 key/value heads at a time, those of the next"));
  CHECK_THAT(plan("2"),
             Contains("keys and values of 1 of 1 key/value head at a time: in forward nothing travels beside "
                      "attention, in backward gathers travel beside wo's products; with fewer "
                      "tensor-parallel ranks each has several heads\n"));
}

TEST_CASE("a plan for a CPU is one with the run's threads, in the ways decided where it was calibrated") {
  const ThreadsFor here(3);
  const int before = parallel_threads();  // 1 where loops are serial
  const TemporaryFolder folder;
  const std::string file = folder / "plan.json";
  const auto gib = [&](const Overrides& more, const std::vector<std::string>& calibration = {}) {
    printed({.overrides = changed_to(small_model({}), more),
             .machine = {.calibration = calibration},
             .json = file});
    CHECK(parallel_threads() == before);
    const Json plan = Json::parse(read_file(file), "plan");
    return plan.at("layouts", "plan").as_array("layouts")[0].at("memory_gib", "plan").as_number("memory");
  };
  if (before == 3) CHECK(gib({"--training.threads", "1"}) < gib({"--training.threads", "2"}));
  CHECK(gib({}) == gib({"--training.threads", std::to_string(cpu_share({}).threads)}));
  const auto report = [&](const std::string& name, const std::string& way) {
    const std::string path = folder / name;
    std::ofstream(path) << R"({"copy_bytes_per_second": 1e9, "gemm_flops_per_second": 1e9, "decisions": {")"
                        << "cpu.bf16_attention\": \"" << way << R"("}, "kernels": [{"name": "x",)"
                        << R"("precision": "bf16", "operands": "", "flops": 1, "bytes": 1, "seconds": 1}]})";
    return path;
  };
  const std::string direct = report("direct.json", "direct"), widened = report("widened.json", "widened");
  CHECK(gib({}, {widened}) == gib({"--cpu.bf16_attention", "widened"}));
  if (cpu::multiplies_bf16_directly()) {
    const double less = gib({"--cpu.bf16_attention", "direct"});
    CHECK(gib({}, {direct}) == less);
    CHECK(gib({}, {direct}) != gib({}, {widened}));
    CHECK(gib({"--cpu.bf16_attention", "direct"}, {widened}) == less);
  } else {
    const auto refused = Contains("products of bf16 are direct, but this machine has no bf16 instructions");
    CHECK_THROWS_WITH(gib({"--cpu.bf16_attention", "direct"}), refused);
    CHECK_THROWS_WITH(gib({}, {direct}), refused);
  }
  CHECK_THROWS_WITH(gib({}, {direct, widened}),
                    Contains(widened + " was measured with cpu.bf16_attention widened, " + direct +
                             " with direct: name those of one way"));
  CHECK_THROWS_WITH(gib({}, {report("odd.json", "perhaps")}),
                    Contains("cpu.bf16_attention was decided as 'perhaps' (" + folder.path() +
                             "/odd.json), expected direct or widened"));
}

TEST_CASE("a plan says where its vocabulary is not that of the run") {
  const Overrides absent{"--model.hf_assets_path", "nosuch", "--training.seq_len", "64"};
  const std::string told =
      "vocabulary 2048 is the flavor's: 'nosuch' does not exist; a run takes its tokenizer's\n";
  const auto plan = [&](Overrides more) {
    more.insert(more.begin(), absent.begin(), absent.end());
    return printed({.overrides = std::move(more), .machine = {.device = "h100_sxm"}});
  };
  CHECK_THAT(plan({}), Contains(told) && Contains(", vocabulary 2048\n"));
  CHECK_THAT(plan({"--model.vocab_size", "2048"}), !Contains("is the flavor's"));
  CHECK_THAT(plan({"--model.hf_assets_path", OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256"}),
             !Contains("is the flavor's") && Contains(", vocabulary 2256\n"));
}

TEST_CASE("a plan for what there is not is refused by name") {
  const auto refusal = [](PlanCommand command) { return message_of([&] { printed(command); }); };
  const Overrides small = small_model({});
  Overrides gpu = small_model_on_gpu({});
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h300"}}),
             Contains("[plan] --device 'h300' is not known") && Contains("h100_sxm"));
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h100_sxm", .network = "wifi"}}),
             Contains("[plan] --network 'wifi' is not known") && Contains("ib_400"));
  CHECK_THAT(refusal({.overrides = small, .machine = {.device = "h100_sxm"}}),
             Contains("--device h100_sxm is a GPU, and training.device is cpu: set --training.device cuda"));
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "a100_sxm", .compute_capability = 90}}),
             Contains("has compute capability 8.0, and --compute-capability says 9.0"));
  for (const double limit :
       {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h100_sxm", .limit_gib = limit}}),
               Contains(fmt::format("[plan] --limit-gib is {}, expected a number > 0", limit)));
  }
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h100_sxm"}, .top = 3}),
             Contains("[plan] --top says how many layouts --search shows: give --search as well"));
  CHECK_THAT(refusal({.overrides = gpu,
                      .machine = {.device = "h100_sxm"},
                      .fixed = {"parallelism.tensor_parallel_degree=8"}}),
             Contains("[plan] --fix says what --search keeps: give --search as well, or the key as "
                      "--parallelism.tensor_parallel_degree VALUE"));
  Overrides tp = gpu;
  tp.insert(tp.end(), {"--parallelism.tensor_parallel_degree", "3"});
  CHECK_THAT(refusal({.overrides = tp, .world_size = 4, .machine = {.device = "h100_sxm"}}),
             Contains("[mesh]"));
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h100_sxm", .calibration = {"/nowhere.json"}}}),
             Contains("/nowhere.json"));
  CHECK_THAT(refusal({.overrides = gpu, .machine = {.device = "h100_sxm"}, .json = "/nowhere/plan.json"}),
             Contains("cannot write /nowhere/plan.json"));
  Overrides automatic = small;
  *(std::ranges::find(automatic, "--training.device") + 1) = "auto";  // --device says what it is for
  CHECK_THAT(printed({.overrides = automatic, .machine = {.device = "h100_sxm"}}),
             Contains("planned for NVIDIA H100"));
}

TEST_CASE("every shipped configuration runs as it is planned, on 1, 2 and 4 ranks") {
  set_parallel_threads(1);
  int configurations = 0;
  for (const auto& file : std::filesystem::directory_iterator(OTTAVA_SOURCE_DIR "/configs")) {
    if (file.path().extension() != ".yaml") continue;
    ++configurations;
    for (const int ranks : {1, 2, 4}) {
      DYNAMIC_SECTION(file.path().filename().string() << " on " << counted(ranks, "rank")) {
        const auto degree = mesh_degrees(load_config(file.path().string())).tp;
        const Overrides overrides =
            small_model({"--parallelism.tensor_parallel_degree", std::to_string(std::min(degree, ranks)),
                         "--quantize.linear.float8.auto", "false", "--training.global_batch_size",
                         std::to_string(2 * ranks / std::min(degree, ranks))});
        const Experiment e = resolve_experiment(load_config(file.path().string(), overrides), nullptr, ranks);
        REQUIRE(e.shape.micro_batches == 2);
        require_as_planned(e, e.shape);
        for (const OpenDecision& decision : open_decisions(e))
          require_as_planned(e, decision.outcomes.back().shape);
      }
    }
  }
  CHECK(configurations >= 8);
}
