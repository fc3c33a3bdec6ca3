#include "apps/commands/plan_command.h"

#include <filesystem>
#include <sstream>

#include "apps/decide/decide.h"
#include "core/counted.h"
#include "core/metrics/step_line.h"
#include "core/parallel_for.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "tests/support/catch.h"
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

StepPlan planned(const Experiment& e, const TrainingShape& shape, int rank) {
  const int ranks = e.mesh.world_size();
  RankGroups groups(make_dry_run_world(rank, ranks), make_dry_run_world(rank, ranks), e.mesh);
  return record_step(shape, kCpu, groups);
}

/// Ranks that train this shape have the memory, make the calls and send the bytes of the plan.
void require_as_planned(const Experiment& e, const TrainingShape& shape) {
  const Layout layout{.dp_replicate = e.mesh.size(MeshAxis::dp_replicate),
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
  const std::string text = printed({.file = {}, .overrides = measured, .compute_capability = 90});
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
