#include "apps/step/step_graphs.h"

#include <algorithm>

#include "core/ops/cross_entropy.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "parallel/comm/solo_communicator.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
#include "tests/support/layout_run.h"
#include "tests/support/nccl_ranks.h"

// A step whose parts are launched as graphs is, bit for bit, the step that runs operation by operation.

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr int kSteps = 5, kSkipped = 3;  // the loss scale of that step makes gradients infinite

TrainingShape shape_of(DType compute, int64_t micro_batches) {
  const LlamaConfig model{
      .dim = 64, .layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 64, .ffn_dim = 96, .vocab_size = 96};
  TrainingShape shape = tiny_shape(model, 1, 8);
  shape.parameters.compute = compute;
  shape.micro_batches = micro_batches;
  shape.validation_batch = 2;
  shape.validation_sequence = 6;
  shape.max_norm = 0.2f;
  return shape;
}

struct Run {
  std::vector<double> loss, grad_norm, validation;
  std::vector<bool> skipped;
  std::vector<float> weights;
  std::vector<int64_t> calls;  ///< collectives that the host issued in each step
  size_t nodes = 0;
};

enum class How { plain, graphs };

Run train(const TrainingShape& shape, std::unique_ptr<RankGroups> ranks, Device device, How how) {
  Run out;
  const int data_rank = ranks->data_rank;
  EngineRun run(shape, std::move(ranks), device);
  run->parameters().initialise(3);
  if (how == How::graphs) run->graphs().enable(*run.ranks().world);
  const int64_t count = shape.micro_batches * shape.batch * shape.sequence,
                checked = shape.validation_batch * shape.validation_sequence;
  for (int step = 0; step < kSteps; ++step) {
    const auto seed = static_cast<uint32_t>(10 * step + data_rank);
    auto inputs = random_tokens(count, shape.model.vocab_size, seed),
         targets = random_tokens(count, shape.model.vocab_size, seed + 100);
    for (size_t i = static_cast<size_t>(step); i < targets.size(); i += 7) targets[i] = kIgnoreIndex;
    const int64_t calls = run.ranks().world->stats().calls();
    StepOutputs done =
        run->train_step({.inputs = inputs, .targets = targets, .document_start = {}, .positions = {}},
                        {.learning_rate = 1e-3 * (step + 1),
                         .loss_scale = step == kSkipped ? 1e38 : 1 << step,
                         .optimizer_step = step + 1,
                         .valid_tokens = step == kSkipped ? 1 : count});
    out.calls.push_back(run.ranks().world->stats().calls() - calls);
    out.loss.push_back(done.loss_sum);
    out.grad_norm.push_back(done.skipped ? 0 : done.grad_norm);
    out.skipped.push_back(done.skipped);
    if (step % 2 == 0) {
      auto text = random_tokens(checked, shape.model.vocab_size, seed + 500);
      out.validation.push_back(
          run->validate({.inputs = text, .targets = text, .document_start = {}, .positions = {}}));
    }
  }
  for (size_t p = 0; p < run->parameters().specs().size(); ++p) {
    auto values = run.values(run->parameters().shard(static_cast<int>(p)).master);
    out.weights.insert(out.weights.end(), values.begin(), values.end());
  }
  out.nodes = run->graphs().nodes();
  return out;
}

void check_same(const Run& graphs, const Run& plain) {
  CHECK(plain.skipped[kSkipped]);
  CHECK(plain.loss[0] != plain.loss[4]);
  CHECK(graphs.loss == plain.loss);
  CHECK(graphs.grad_norm == plain.grad_norm);
  CHECK(graphs.skipped == plain.skipped);
  CHECK(graphs.validation == plain.validation);
  CHECK((graphs.weights == plain.weights));
  CHECK(plain.nodes == 0);
  CHECK(graphs.nodes > 50);
}

}  // namespace

TEST_CASE("graphs change no bit: accumulation, validation between steps, a skipped step") {
  if (!has_gpu()) return skip(kNoGpu);
  const Device device{DeviceType::cuda, 0};
  for (auto [compute, micro_batches] : {std::pair{DType::f32, 1}, {DType::bf16, 2}, {DType::bf16, 4}}) {
    INFO(name_of(compute) << ", " << micro_batches << " micro-batches");
    const TrainingShape shape = shape_of(compute, micro_batches);
    auto run = [&](How how) {
      return train(shape, std::make_unique<RankGroups>(solo_rank_groups()), device, how);
    };
    check_same(run(How::graphs), run(How::plain));
  }
}

TEST_CASE("graphs that contain NCCL's calls change no bit") {
  struct Case {
    const char* name;
    Layout layout;
    void (*change)(TrainingShape&);
  };
  const std::vector<Case> cases = {
      {"FSDP 2", {.dp_shard = 2, .micro_batches = 1}, [](TrainingShape&) {}},
      {"FSDP 2, accumulation", {.dp_shard = 2, .micro_batches = 3}, [](TrainingShape&) {}},
      {"FSDP 2, reduced once",
       {.dp_shard = 2, .micro_batches = 3},
       [](TrainingShape& s) { s.parameters.reduce_every_micro_batch = false; }},
      {"FSDP 2, weights kept",
       {.dp_shard = 2, .micro_batches = 3},
       [](TrainingShape& s) { s.parameters.reshard = FsdpOptions::Reshard::never; }},
      {"TP 2", {.tp = 2, .micro_batches = 2}, [](TrainingShape&) {}},
      {"FSDP 2, Muon", {.dp_shard = 2, .micro_batches = 2}, give_matrices_to_muon},
      {"TP 2, Muon", {.tp = 2, .micro_batches = 1}, give_matrices_to_muon},
      {"DDP 2", {.dp_replicate = 2, .micro_batches = 2}, [](TrainingShape&) {}},
  };
  for (const Case& c : cases) {
    if (nccl_ranks(c.layout.world_size()) < c.layout.world_size())
      return skip("NCCL needs a GPU for each rank");
    DYNAMIC_SECTION(c.name) {
      TrainingShape shape = shape_of(DType::bf16, c.layout.micro_batches);
      c.change(shape);
      auto all = [&](How how) {
        std::vector<Run> runs(static_cast<size_t>(c.layout.world_size()));
        run_nccl_mesh(c.layout, [&](std::unique_ptr<RankGroups> groups, int rank) {
          runs[static_cast<size_t>(rank)] = train(shape, std::move(groups), {DeviceType::cuda, rank}, how);
        });
        return runs;
      };
      const std::vector<Run> graphs = all(How::graphs), plain = all(How::plain);
      for (size_t r = 0; r < graphs.size(); ++r) {
        check_same(graphs[r], plain[r]);
        // Two steps run as the host says, the others are launched.
        CHECK(graphs[r].calls[0] == plain[r].calls[0]);
        CHECK(graphs[r].calls[1] == plain[r].calls[1]);
        CHECK(plain[r].calls[2] > 0);
        CHECK(graphs[r].calls[2] == 0);
        CHECK(graphs[r].calls[4] == 0);
      }
    }
  }
}

TEST_CASE("whether steps are graphs is decided and said") {
  using enum TrainingConfig::CudaGraphs;
  SoloCommunicator alone;
  auto staged = make_dry_run_world(0, 2);
  const Device cpu{DeviceType::cpu, 0}, gpu{DeviceType::cuda, 0};
  CHECK(decide_graphs(automatic, gpu, alone).on);
  CHECK(decide_graphs(on, gpu, alone).reason ==
        "on: step 1 runs as it is, step 2 is recorded, later steps are launched");
  CHECK(decide_graphs(automatic, gpu, alone, {.amax_history_length = 16}).reason ==
        "on: step 1 runs as it is, step 2 is recorded, later steps are launched; the same again from the "
        "first step whose amax history, of 16 steps, is full");
  CHECK_FALSE(decide_graphs(off, gpu, alone).on);
  CHECK(decide_graphs(off, gpu, alone).reason == "off: training.cuda_graphs is off");
  CHECK(decide_graphs(automatic, cpu, alone).reason == "off: the device is cpu");
  CHECK(decide_graphs(automatic, gpu, *staged).reason ==
        "off: ranks exchange tensors through host memory (dry_run), which a graph cannot contain");
  CHECK_THROWS_WITH(
      decide_graphs(on, cpu, alone),
      Catch::Contains("[training] cuda_graphs is on, but the device is cpu: set it to auto or off"));
  CHECK_THROWS_AS(decide_graphs(on, gpu, *staged), ConfigError);
  // The same in a pipeline.
  const StepTraits stages{.has_stages = true};
  CHECK_FALSE(decide_graphs(automatic, gpu, alone, stages).on);
  CHECK(decide_graphs(automatic, gpu, alone, stages).reason ==
        "off: pipeline parallelism interleaves micro-batches, so that no part of a step repeats");
  CHECK_THROWS_WITH(decide_graphs(on, gpu, alone, stages),
                    Catch::Contains("cuda_graphs is on, but pipeline parallelism interleaves micro-batches"));
}

TEST_CASE("micro-batches that do different work cannot share a graph") {
  if (!has_gpu()) return skip(kNoGpu);
  Stream stream = Stream::cuda(0);
  SoloCommunicator alone;
  DeviceBuffer x(stream, DType::f32, {4});
  StepGraphs graphs;
  graphs.enable(alone);
  int cleared = 1;
  auto body = [&] {
    for (int i = 0; i < cleared; ++i) cuda::fill_zero(x.tensor().data, 4, stream.native());
  };
  for (int step = 0; step < 2; ++step) {
    graphs.begin_step(StepGraphs::Pace::launched);
    graphs.run(StepPart::middle, stream, body);
  }
  CHECK(graphs.nodes() == 1);
  cleared = 2;
  CHECK_THROWS_WITH(graphs.run(StepPart::update, stream, [&] { stream.synchronize(); }),
                    Catch::Contains("the update cannot be recorded") &&
                        Catch::Contains("cudaStreamSynchronize") &&
                        Catch::Contains("set training.cuda_graphs to off"));
  CHECK_THROWS_WITH(graphs.run(StepPart::middle, stream, body),
                    Catch::Contains("was recorded as 1 operations with 0 collectives but now has 2"));
  stream.synchronize();
}
