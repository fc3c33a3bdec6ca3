#include "apps/commands/plan_command.h"
#include "apps/config/resolved_layout.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>

#include "apps/decide/decide.h"
#include "apps/predict/sample_step.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/metrics/step_line.h"
#include "core/text/counted.h"
#include "core/text/gib.h"
#include "core/threads/threads_for.h"
#include "parallel/ranks/cpu_share.h"
#include "tests/apps/commands/planned.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/traffic_formula.h"
#include "tests/support/variable.h"

// A plan is made without ranks, and holds for those that train.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

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
  std::vector<int64_t> bytes;
  for (const MemoryPlan& memory : curve.memory) bytes.push_back(memory.total_bytes());
  const StepPlan shown = sample_roles(shape, kCpu, e.mesh)[0];
  CHECK(shown.memory.total_bytes() == *std::ranges::max_element(bytes));
  CHECK(shown.memory.total_bytes() == bytes[static_cast<size_t>(shown.rank)]);
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
  const auto plan_within = [&](double limit_gib) {
    return printed({.overrides = overrides, .world_size = 2, .machine = {.limit_gib = limit_gib}});
  };
  const std::string text = plan_within(1), tight = plan_within(1e-4);
  CHECK_THAT(text, Contains("Decided as by a run: parallelism.fsdp_reduce_every_microbatch = false (less "
                            "traffic, and ") &&
                       Contains(" of 1024.0 MiB free suffice)\n  false "));
  CHECK_THAT(tight, Contains("Decided as by a run: parallelism.fsdp_reduce_every_microbatch = true (whole "
                             "gradients would take ") &&
                        Contains(" of 0.1 MiB free)\n  true "));
  std::vector<int64_t> calls;
  for (const auto& [value, shape] : open[0].outcomes) {
    INFO(value);
    require_as_planned(e, shape);
    const CommStats traffic = planned(e, shape, 0).traffic;
    calls.push_back(traffic.calls());
    for (const std::string& either : {text, tight})
      CHECK_THAT(either,
                 Contains("  " + value) && Contains(with_commas(traffic.sent_bytes()) + " bytes sent in " +
                                                    counted(traffic.calls(), "call") + "\n"));
  }
  CHECK(open[0].outcomes[0].value == "false");
  CHECK_FALSE(e.shape.parameters.reduce_every_micro_batch);
  // What is small is no 0.000 GiB.
  CHECK(std::regex_search(text, std::regex("\n  parameters +[0-9.]+ MiB\n")));
  CHECK_THAT(text, Contains(" MiB sent\n") && !Contains(" GiB sent\n"));
  CHECK_THAT(text, Contains(fmt::format("GiB sent in {} calls\n", calls[0])));
  CHECK_THAT(tight, Contains(fmt::format("GiB sent in {} calls\n", calls[1])));
  // Each unit is reduced three times more: w13, w2 and wqkv and the pack of wo and norms of two blocks, the
  // embedding, and the output layer with the last norm.
  CHECK(calls[1] - calls[0] == 3 * (2 * 4 + 1 + 2));
}

TEST_CASE("a plan takes the memory of what a run would decide with the memory that is there") {
  const TemporaryFolder folder;
  const std::string file = folder / "plan.json";
  const Overrides overrides =
      changed_to(small_model_on_gpu({"--training.global_batch_size", "8", "--model.converters",
                                     "[quantize.linear.float8]", "--attention.backend", "flash"}),
                 {"--model.n_layers", "12"});
  const Experiment e = resolve_experiment(load_config("", overrides), nullptr, 2, 90);
  const auto bytes = [&](bool reduces_often, bool keeps_codes) {
    TrainingShape shape = e.shape;
    shape.parameters.reduce_every_micro_batch = reduces_often;
    shape.parameters.keeps_float8_codes = keeps_codes;
    return record_first_rank(shape, {DeviceType::cuda, 0}, e.mesh).memory.total_bytes();
  };
  struct Case {
    bool reduces_often, keeps_codes;
  };
  for (const auto& [reduces_often, keeps_codes] :
       {Case{false, true}, Case{false, false}, Case{true, false}}) {
    INFO("reduces often: " << reduces_often << ", keeps codes: " << keeps_codes);
    const int64_t needed = bytes(reduces_often, keeps_codes);
    REQUIRE((keeps_codes || needed < bytes(false, true)));
    REQUIRE((!reduces_often || needed < bytes(false, false)));
    const std::string text = printed({.overrides = overrides,
                                      .world_size = 2,
                                      .machine = {.device = "h100_sxm", .limit_gib = gib(needed)},
                                      .json = file});
    CHECK_THAT(text, Contains("Fits: ") && !Contains("Left to the run: "));
    const Json plan = Json::parse(read_file(file), "plan");
    const Json& layout = plan.at("layouts", "plan").as_array("layouts")[0];
    CHECK(layout.at("memory_gib", "plan").as_number("memory") == Approx(gib(needed)));
    const Json& decided = layout.at("decisions", "plan");
    CHECK(decided.at("parallelism.fsdp_reduce_every_microbatch", "plan").as_string("value") ==
          (reduces_often ? "true" : "false"));
    CHECK(decided.at("quantize.linear.float8.keep_weight_codes", "plan").as_string("value") ==
          (keeps_codes ? "true" : "false"));
  }
  const std::string chunks = printed({.overrides = changed_to(overrides, {"--training.seq_len", "4096"}),
                                      .world_size = 2,
                                      .machine = {.device = "h100_sxm"}});
  CHECK_THAT(chunks, Contains("Decided as by a run: model.loss_chunk_tokens = 4096 (fewer passes over ") &&
                         Contains("\n  4096 ") && Contains("\n  2048 ") && Contains("\n  1024 ") &&
                         !Contains("\n  8192 "));
  // Of a GPU of which nothing is known both are left open.
  const std::string unknown =
      printed({.overrides = overrides, .world_size = 2, .machine = {.compute_capability = 103}});
  CHECK_THAT(unknown, Contains("Left to the run: quantize.linear.float8.keep_weight_codes, decided by the "
                               "memory that is free; this plan is the first of\n"));
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
  const Overrides big =
      flavor_at_8192("8B") + Overrides{"--activation_checkpoint.mode", "none", "--training.device", "cuda"};
  const auto text = [&](PlanCommand command) {
    command.overrides = big + command.overrides;
    return printed(command);
  };
  const std::string fits = text({.world_size = 64, .machine = {.device = "h100_sxm"}});
  CHECK_THAT(fits, Contains("planned for NVIDIA H100 SXM 80 GB") && Contains("\nFits: ") &&
                       Contains(" GiB to spare\n") && Contains("\nTime per step: ") &&
                       Contains("; h100_sxm, allow for 25%)") && Contains("    products bf16 ") &&
                       Contains("    dp_shard all_gather ") &&
                       Contains("; 8 ranks a machine, network ib_400\n") &&
                       Contains("\n  between ranks: by the figures of device and network; this program has "
                                "not run on several GPUs\n") &&
                       Contains("  not in it: stragglers"));
  const auto column_of_transfers = [&](const std::string& row) {  // beside names of any length
    const size_t begin = fits.find(row);
    REQUIRE(begin != std::string::npos);
    return fits.find(" transfers, ", begin) - begin;
  };
  CHECK(column_of_transfers("    dp_shard reduce_scatter ") ==
        column_of_transfers("    dp_shard all_gather "));
  CHECK_THAT(text({.world_size = 1, .machine = {.device = "h200_sxm"}}), !Contains("on several GPUs"));
  const std::string full = text({.world_size = 8, .machine = {.device = "h100_sxm", .limit_gib = 45}});
  CHECK_THAT(full, Contains("\nDOES NOT FIT: ") && Contains(" and 45.0 are there (--limit-gib)") &&
                       Contains("\nWhat takes less, by what it costs for a GiB (each recorded):\n") &&
                       Contains("activation_checkpoint.mode: full") &&
                       Contains(" GiB: activation_checkpoint.mode: auto (op, all but attention of 1 in 8 "
                                "blocks); FLOPs +2.4%, ") &&
                       Contains("optimizer.state_dtype: bfloat16") && Contains("; fits, ") &&
                       !Contains("none of them fits"));
  const std::string kept = text({.overrides = {"--activation_checkpoint.mode", "auto"},
                                 .world_size = 8,
                                 .machine = {.device = "h100_sxm", .limit_gib = 45}});
  CHECK_THAT(kept,
             Contains("\nFits: ") &&
                 Contains("\nDecided as by a run: activation_checkpoint.mode = op, all but attention of 1 in "
                          "8 blocks (the fastest that fits, and ") &&
                 Contains("\n  none                                   ") &&
                 Contains(" a step; 0.0000 TFLOP in fp8, ") && Contains("\n  op     ") &&
                 Contains("\n  full     "));
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
             Contains("Time, and whether it fits: unknown, because no table has this GPU; set --device") &&
                 !Contains("Time per step"));
  const std::string limited = text({.world_size = 8, .machine = {.compute_capability = 86, .limit_gib = 20}});
  CHECK_THAT(limited,
             Contains("\nDOES NOT FIT: ") && Contains(" and 20.0 are there (--limit-gib)") &&
                 Contains("\n  without what NCCL takes besides, which is not known for this GPU\n") &&
                 Contains("\nTime: unknown, because") && Contains("\nDecided as by a run: "));
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
  CHECK(gib({}) == gib({"--training.threads", std::to_string(cpu_share(1).threads)}));
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
    const auto refused =
        Contains("bf16 products are set to direct, but this machine has no bf16 instructions");
    CHECK_THROWS_WITH(gib({"--cpu.bf16_attention", "direct"}), refused);
    CHECK_THROWS_WITH(gib({}, {direct}), refused);
  }
  CHECK_THROWS_WITH(gib({}, {direct, widened}),
                    Contains(widened + " was measured with cpu.bf16_attention widened, but " + direct +
                             " with direct: give files measured in the same way"));
  CHECK_THROWS_WITH(gib({}, {report("odd.json", "perhaps")}),
                    Contains("cpu.bf16_attention was decided as 'perhaps' (" + folder.path() +
                             "/odd.json), expected direct or widened"));
}

TEST_CASE("a plan for this CPU keeps its peaks where training.gemm_cache says") {
  const TemporaryFolder home, given;
  const Variable cache("XDG_CACHE_HOME", home.path().c_str());
  const auto files_in = [](const std::string& folder) {
    return std::distance(std::filesystem::recursive_directory_iterator(folder), {});
  };
  printed({.overrides = small_model({"--training.gemm_cache", "off"})});
  CHECK(files_in(home.path()) == 0);
  printed({.overrides = small_model({"--training.gemm_cache", given.path()})});
  CHECK(files_in(home.path()) == 0);
  CHECK(files_in(given.path()) == 1);
}

TEST_CASE("a plan says where its vocabulary is not that of the run") {
  const Overrides absent{"--model.hf_assets_path", "nosuch", "--training.seq_len", "64"};
  const std::string told =
      "the plan uses the flavor's vocabulary size 2048, because 'nosuch' does not exist; a run uses that of "
      "its tokenizer\n";
  const auto plan = [&](Overrides more) {
    more.insert(more.begin(), absent.begin(), absent.end());
    return printed({.overrides = std::move(more), .machine = {.device = "h100_sxm"}});
  };
  CHECK_THAT(plan({}), Contains(told) && Contains(", vocabulary 2048\n"));
  CHECK_THAT(plan({"--model.vocab_size", "2048"}), !Contains("the flavor's vocabulary"));
  CHECK_THAT(plan({"--model.hf_assets_path", OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256"}),
             !Contains("the flavor's vocabulary") && Contains(", vocabulary 2256\n"));
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

TEST_CASE("a plan has the memory of a run's fullest rank, and says which that is") {
  set_parallel_threads(1);
  const Overrides muon = changed_to(
      small_model({"--optimizer.name", "Muon", "--parallelism.tensor_parallel_degree", "4",
                   "--activation_checkpoint.mode", "full"}),
      {"--model.ffn_dim", "2048", "--training.seq_len", "128", "--training.global_batch_size", "4"});
  const Experiment e = resolve_experiment(load_config("", muon), nullptr, 8);
  REQUIRE(e.shape.micro_batches == 2);
  require_as_planned(e, e.shape);
  const int fullest = sample_roles(e.shape, kCpu, e.mesh)[0].rank;
  REQUIRE(fullest != 0);
  const TemporaryFolder folder;
  CHECK_THAT(printed({.overrides = muon, .world_size = 8, .json = folder / "plan.json"}),
             Contains(fmt::format("; this is rank 0 with the memory of rank {}, the fullest\n", fullest)));
  const Json report = Json::parse(read_file(folder / "plan.json"), "plan");
  const Json& layout = report.at("layouts", "plan").as_array("layouts")[0];
  CHECK(layout.at("fullest_rank", "plan").as_integer("rank") == fullest);
}

TEST_CASE("on a CPU the snapshot for asynchronous checkpoints has to fit beside the step") {
  const Overrides saves = small_model({"--checkpoint.enable", "true", "--checkpoint.async_mode", "async"});
  const Experiment e = resolve_experiment(load_config("", saves), nullptr, 1);
  const double step = gib(planned(e, e.shape, 0).memory.total_bytes()), snapshot = gib(snapshot_bytes(e, {}));
  REQUIRE(snapshot > 0);
  const auto plan = [](const Overrides& overrides, double limit_gib) {
    return printed({.overrides = overrides, .world_size = 1, .machine = {.limit_gib = limit_gib}});
  };
  CHECK_THAT(plan(saves, step + 0.9 * snapshot), Contains("DOES NOT FIT"));
  CHECK_THAT(plan(saves, step + 1.1 * snapshot), Contains("Fits: "));
  const Overrides waits = changed_to(saves, {"--checkpoint.async_mode", "disabled"});
  CHECK_THAT(plan(waits, step + 0.9 * snapshot), Contains("Fits: "));
}
