// What ranks take of NCCL beside the calls of a step. On a GPU it is memory that no plan contains, so all of
// it must be there before anyone asks what is free for a step.
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "apps/step/step_plan.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/nccl_ranks.h"
#include "tests/support/skip.h"

// In a test that is linked with the host execution layer, whose NCCL counts.
namespace ottava::cuda_host {
__attribute__((weak)) std::vector<int> nccl_cta_limits();
}

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr const char* kNoCount = "only the stand-in for NCCL counts its communicators";

TrainingShape with_heads(int heads, int kv_heads) {
  const LlamaConfig model{.dim = 64,
                          .layers = 2,
                          .heads = heads,
                          .kv_heads = kv_heads,
                          .head_dim = 32,
                          .ffn_dim = 160,
                          .vocab_size = 320};
  TrainingShape shape = tiny_shape(model, 4, 12);
  shape.max_norm = 0.2f;
  return shape;
}

/// NCCL's communicators that there are on all ranks together, between two meetings of the ranks.
int64_t communicators(RankGroups& ranks) {
  Stream host = Stream::cpu();
  ranks.control->barrier(host, "all are made");
  const int64_t count = std::ssize(cuda_host::nccl_cta_limits());
  ranks.control->barrier(host, "all were counted");
  return count;
}

/// Of rank 0, as a plan counts them.
std::vector<RankConnections::Group> planned_groups(const Mesh& mesh) {
  const auto connections = std::make_shared<RankConnections>();
  const int size = mesh.world_size();
  const RankGroups groups(make_dry_run_world(0, size), make_dry_run_world(0, size, connections), mesh);
  return connections->groups;
}

// Catch's assertions belong to one thread, ranks are several.
void require(bool holds, const std::string& text) {
  if (!holds) throw std::runtime_error(text);
}

}  // namespace

TEST_CASE(
    "ranks that hold the same key and value heads connect over NCCL once, before a step's memory is asked "
    "for") {
  if (!cuda_host::nccl_cta_limits) return skip(kNoCount);
  const Layout layout{.tp = 4};
  const TrainingShape shape = shape_on(with_heads(4, 2), layout);
  CHECK_NOTHROW(run_nccl_mesh(layout, [&](std::unique_ptr<RankGroups> groups, int rank) {
    const Device gpu{DeviceType::cuda, rank};
    const int64_t before = communicators(*groups);
    record_step(shape, gpu, *groups);
    require(communicators(*groups) == before + layout.world_size(), "planning a step leaves them connected");
    record_step(shape, gpu, *groups);
    const StepPlan plan = record_first_rank(shape, gpu, layout.mesh());
    require(std::ssize(plan.connections.groups) == before / layout.world_size() + 1, "a plan counts them");
    EngineRun run(shape, std::move(groups), gpu);
    require(communicators(run.ranks()) == before + layout.world_size(), "the step uses the same");
  }));
}

TEST_CASE("key and value heads that ranks share over NCCL are trained as in one process, as graphs too") {
  const TrainingShape whole = with_heads(4, 2);
  for (const Layout& layout :
       {Layout{.tp = 4}, Layout{.dp_shard = 2, .tp = 4}, Layout{.tp = 4, .micro_batches = 2}}) {
    if (nccl_ranks(layout.world_size()) < layout.world_size()) return skip("NCCL needs a GPU for each rank");
    DYNAMIC_SECTION(layout.mesh().describe() << ", micro-batches: " << layout.micro_batches) {
      const LayoutCurve cpu = train_on(whole, {}, 4, {DeviceType::cpu, 0});
      for (const StepForm form : {StepForm::plain, StepForm::graphs}) {
        const LayoutCurve curve = train_over_nccl(whole, layout, 4, form);
        for (size_t step = 0; step < cpu.loss.size(); ++step) {
          INFO("step " << step);
          CHECK(curve.loss[step] == Approx(cpu.loss[step]).epsilon(1e-5));
          CHECK(curve.grad_norm[step] == Approx(cpu.grad_norm[step]).epsilon(1e-4));
        }
      }
    }
  }
}

TEST_CASE("a mesh takes one communicator of NCCL's for each set of ranks") {
  if (!cuda_host::nccl_cta_limits) return skip(kNoCount);
  struct Case {
    Layout layout;
    int sets;  ///< of ranks that a step's calls are among; tensor parallel and stages have one in any case
  };
  for (const Case& c :
       {Case{{.dp_shard = 4}, 1}, Case{{.dp_replicate = 4}, 1}, Case{{.dp_replicate = 2, .dp_shard = 2}, 3},
        Case{{.dp_shard = 2, .tp = 2}, 3}, Case{{.dp_shard = 2, .cp = 2}, 2},
        Case{{.dp_shard = 2, .pp = 2}, 3}, Case{{.tp = 4}, 2}}) {
    DYNAMIC_SECTION(c.layout.mesh().describe()) {
      const int64_t before = std::ssize(cuda_host::nccl_cta_limits());
      CHECK_NOTHROW(run_nccl_mesh(c.layout, [&](std::unique_ptr<RankGroups> groups, int) {
        const int64_t here = (communicators(*groups) - before) / c.layout.world_size();
        require(here == c.sets, fmt::format("{} communicators, expected {}", here, c.sets));
        require(std::ssize(planned_groups(c.layout.mesh())) == c.sets, "a plan counts as many");
      }));
      CHECK(std::ssize(cuda_host::nccl_cta_limits()) == before);
    }
  }
}

// A first message holds the host until the other rank's call, which here comes only after it.
TEST_CASE("ranks whose steps send messages over NCCL are connected once the step is planned") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  struct Case {
    const char* name;
    TrainingShape whole;
    Layout layout;
  };
  std::vector<Case> cases{{"Muon", with_heads(2, 2), {.dp_shard = 2}},
                          {"gradients in FP8", wide_float8_step(), {.dp_shard = 2}},
                          {"blocks of rows", with_heads(2, 2), {.tp = 2}},
                          {"stages", with_heads(2, 2), {.micro_batches = 2, .pp = 2}}};
  give_matrices_to_muon(cases[0].whole);
  cases[1].whole.batch = 2;
  cases[1].whole = in_float8(cases[1].whole, {.enable_float8_gradient_all_to_all = true}, 1, 90);
  cases[2].whole.model_options.overlap.w2 = Overlap::blocks;
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.name) {
      CHECK_NOTHROW(run_nccl_mesh(c.layout, [&](std::unique_ptr<RankGroups> groups, int rank) {
        const Device gpu{DeviceType::cuda, rank};
        record_step(shape_on(c.whole, c.layout), gpu, *groups);
        groups->world->state().set_timeout_seconds(30);
        Stream stream = Stream::cuda(rank), host = Stream::cpu();
        Communicator& ranks = c.layout.tp > 1   ? *groups->tp
                              : c.layout.pp > 1 ? *groups->pp
                                                : *groups->dp_shard;
        const DeviceBuffer message(stream, DType::f32, {4});
        Request request;
        if (rank == 1) request = ranks.send(stream, {.tensor = message.tensor(), .to = 0, .label = "ahead"});
        groups->control->barrier(host, "it was sent");
        if (rank == 0)
          request = ranks.recv(stream, {.tensor = message.tensor(), .from = 1, .label = "ahead"});
        request.wait(stream);
        stream.synchronize();
      }));
    }
  }
}
