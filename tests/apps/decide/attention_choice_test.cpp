#include "apps/decide/attention_choice.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "apps/decide/decide.h"
#include "core/cuda/fused_attention.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_training.h"

// Which kernels compute attention on a GPU: what is refused, what is measured, what a run that goes on
// follows.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

const Device kGpu{DeviceType::cuda, 0};

/// The stand-in of cuDNN, whose speed and presence a test may choose.
bool has_stand_in() {
  return has_gpu() && cuda::cudnn_is_built() && cuda::device_name(0) == "host execution layer";
}

constexpr std::string_view kNoStandIn = "this needs the host execution layer's stand-in of cuDNN";

class StandIn {
 public:
  explicit StandIn(const char* kind) { ::setenv("OTTAVA_CUDA_HOST_CUDNN", kind, 1); }
  ~StandIn() { ::unsetenv("OTTAVA_CUDA_HOST_CUDNN"); }
};

const TinyTraining::Overrides kRun = words(
    "--training.steps 6 --training.global_batch_size 4 --training.mixed_precision_param bfloat16 "
    "--checkpoint.enable true --checkpoint.interval 4");

Experiment settled(const TinyTraining& tiny, const TinyTraining::Overrides& overrides, Device device) {
  const Config c = tiny.config("unused", overrides);
  RankGroups ranks = solo_rank_groups();
  Experiment e = resolve_experiment(c, load_tokenizer(c), 1);
  settle_decisions(e, ranks, device, DecisionSource::checkpoint);
  return e;
}

std::string chosen(const Experiment& e) {
  const Decisions::Entry* entry = e.decisions.find("attention.backend");
  CHECK((e.shape.model_options.fused_attention != nullptr) ==
        (e.decisions.find("attention.library") != nullptr));
  return entry ? entry->value + ": " + entry->reason : "";
}

}  // namespace

TEST_CASE("a CPU has one attention") {
  const TinyTraining tiny;
  const Device cpu{DeviceType::cpu, 0};
  CHECK(chosen(settled(tiny, {}, cpu)) == "");
  CHECK(chosen(settled(tiny, {"--attention.backend", "flash"}, cpu)) == "");
  CHECK_THROWS_WITH(settled(tiny, {"--attention.backend", "cudnn"}, cpu),
                    Contains("[attention] backend is cudnn, but the device is cpu: set it to auto or flash"));
  CHECK_THROWS_WITH(tiny.config("x", {"--attention.backend", "xformers"}),
                    Contains("attention.backend") && Contains("flash"));
}

TEST_CASE("under auto the faster attention is taken, and the reason is a decision") {
  if (!has_stand_in()) return skip(kNoStandIn);
  const TinyTraining tiny;
  {
    const StandIn fast("fast");
    const Experiment e = settled(tiny, kRun, kGpu);
    CHECK_THAT(chosen(e),
               Contains("cudnn: forward and backward of a layer: flash ") && Contains(" ms, cudnn 0.0"));
    CHECK(e.decisions.find("attention.library")->value == "cuDNN 9.99.0 on host execution layer");
    CHECK(e.shape.model_options.fused_attention->size() == 2);
    CHECK(settled(tiny, kRun + TinyTraining::Overrides{"--attention.backend", "flash"}, kGpu)
              .decisions.entries.empty());
    CHECK(settled(tiny, kRun + TinyTraining::Overrides{"--attention.backend", "cudnn"}, kGpu)
              .shape.model_options.fused_attention);
  }
  {
    const StandIn slow("slow");
    CHECK_THAT(chosen(settled(tiny, kRun, kGpu)),
               Contains("flash: forward and backward of a layer: flash ") && Contains(" ms, cudnn 10.0"));
    CHECK(settled(tiny, kRun + TinyTraining::Overrides{"--attention.backend", "cudnn"}, kGpu)
              .shape.model_options.fused_attention);
  }
}

TEST_CASE("where cuDNN cannot compute attention, auto says why and cudnn is refused") {
  if (!has_stand_in()) return skip(kNoStandIn);
  const TinyTraining tiny;
  struct Case {
    const char* stand_in;
    TinyTraining::Overrides overrides;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {"none", {}, "[cuda] the NVIDIA cuDNN library (libcudnn.so.9) was not found"},
      {"fast",
       {"--training.mixed_precision_param", "float32"},
       "cuDNN's attention needs bfloat16, but training.mixed_precision_param is f32"},
      {"fast",
       {"--model.attn_mask_type", "block_causal"},
       "cuDNN's attention does not support model.attn_mask_type block_causal"},
      {"old", {}, "finding a kernel of attention failed in cuDNN 9.99.0: backward is not deterministic"},
  };
  for (const Case& c : cases) {
    INFO(c.reason);
    const StandIn stand_in(c.stand_in);
    CHECK_THAT(chosen(settled(tiny, kRun + c.overrides, kGpu)), Contains("flash: ") && Contains(c.reason));
    TinyTraining::Overrides asked = kRun + c.overrides;
    asked.insert(asked.end(), {"--attention.backend", "cudnn"});
    CHECK_THROWS_WITH(settled(tiny, asked, kGpu), Contains("[attention] backend is cudnn, but ") &&
                                                      Contains(c.reason) &&
                                                      Contains("set it to auto or flash"));
  }
}

TEST_CASE("ranks that share sequences choose their attention as others do, and documents are a said reason") {
  if (!has_stand_in()) return skip(kNoStandIn);
  const TinyTraining tiny;
  auto shared = [&](const TinyTraining::Overrides& more) {
    std::unique_ptr<Experiment> settled_by[2];
    run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
      const Config c = tiny.config(
          "unused", kRun +
                        words("--training.seq_len 512 --training.global_batch_size 1 "
                              "--training.local_batch_size 1 --parallelism.context_parallel_degree 2") +
                        more);
      Experiment e = resolve_experiment(c, load_tokenizer(c), 2);
      RankGroups ranks = groups_over(world, e.mesh);
      settle_decisions(e, ranks, {DeviceType::cuda, world.rank()}, DecisionSource::checkpoint);
      settled_by[world.rank()] = std::make_unique<Experiment>(std::move(e));
    });
    CHECK(chosen(*settled_by[0]) == chosen(*settled_by[1]));
    return chosen(*settled_by[0]);
  };
  const StandIn fast("fast");
  CHECK_THAT(shared({}), Contains("cudnn: forward and backward of a layer: flash "));
  CHECK_THAT(shared({"--model.attn_mask_type", "block_causal"}),
             Contains("flash: cuDNN's attention does not support model.attn_mask_type block_causal"));
}

TEST_CASE("a workspace is judged by the step's memory, and can be asked for") {
  if (!has_stand_in()) return skip(kNoStandIn);
  const TinyTraining tiny;
  {
    const StandIn hungry("hungry");  // two GiB, which there are
    CHECK_THAT(chosen(settled(tiny, kRun, kGpu)), Contains("cudnn: forward and backward of a layer: flash "));
  }
  const StandIn ravenous("ravenous");
  CHECK_THAT(chosen(settled(tiny, kRun, kGpu)), Contains("flash: with its workspace the step takes 1024.") &&
                                                    Contains(" GiB, of ") && Contains(" free"));
  CHECK(settled(tiny, kRun + TinyTraining::Overrides{"--attention.backend", "cudnn"}, kGpu)
            .shape.model_options.fused_attention);
  // The other backward needs no such workspace.
  const Experiment free =
      settled(tiny, kRun + TinyTraining::Overrides{"--attention.deterministic", "false"}, kGpu);
  CHECK_THAT(chosen(free), Contains("cudnn: ") && Contains(", cudnn, not deterministic 0.0") &&
                               Contains("; with its workspace the step takes 1024."));
  CHECK(free.decisions.find("attention.deterministic")->value == "false");
}

TEST_CASE("a backward that need not repeat its bits is taken only where it is allowed, and faster") {
  if (!has_stand_in()) return skip(kNoStandIn);
  using Backward = cuda::FusedAttention::Backward;
  const TinyTraining tiny;
  auto backward = [&](const TinyTraining::Overrides& more) {
    return settled(tiny, kRun + more, kGpu).shape.model_options.fused_attention->backward();
  };
  const StandIn uneven("uneven");
  CHECK_THAT(chosen(settled(tiny, kRun, kGpu)), !Contains("not deterministic"));
  const Experiment both =
      settled(tiny, kRun + TinyTraining::Overrides{"--attention.deterministic", "false"}, kGpu);
  CHECK_THAT(chosen(both), Contains("cudnn: forward and backward of a layer: flash ") &&
                               Contains(" ms, cudnn, not deterministic 0.0") && Contains(" ms, cudnn 10.0"));
  REQUIRE(both.decisions.find("attention.deterministic"));
  CHECK(both.decisions.find("attention.deterministic")->value == "false");
  CHECK(both.shape.model_options.fused_attention->backward() == Backward::free);
  CHECK(backward({"--attention.backend", "cudnn"}) == Backward::deterministic);
  CHECK(backward({"--attention.backend", "cudnn", "--attention.deterministic", "false"}) == Backward::free);
}

TEST_CASE(
    "a step with cuDNN's attention is the same as graphs, near ours, and a run that goes on follows the "
    "decision") {
  if (!has_stand_in()) return skip(kNoStandIn);
  const TinyTraining tiny;
  auto losses = [&](const std::string& run) { return logged(tiny / run, "loss_metrics/global_avg_loss"); };
  auto train = [&](const std::string& run, const TinyTraining::Overrides& more) {
    auto trainer = tiny.start_on(kGpu, run, kRun + more);
    CHECK(trainer->engine().graphs().is_enabled() == (run != "plain"));
    CHECK(trainer->run() == Trainer::End::completed);
    return chosen(trainer->experiment());
  };
  const StandIn fast("fast");
  CHECK_THAT(train("graphs", tiny.validation()), Contains("cudnn: "));
  train("flash", {"--attention.backend", "flash"});
  train("plain",
        tiny.validation() + Overrides{"--training.cuda_graphs", "off", "--attention.backend", "cudnn"});
  CHECK(losses("graphs") == losses("plain"));
  CHECK(losses("graphs") != losses("flash"));
  REQUIRE(losses("flash").size() == 6);
  for (size_t i = 0; i < 6; ++i) CHECK(losses("graphs")[i] == Approx(losses("flash")[i]).epsilon(2e-3));

  // Slower now, and followed all the same.
  {
    const StandIn slow("slow");
    auto again = tiny.start_on(kGpu, "graphs", kRun + TinyTraining::Overrides{"--checkpoint.load_step", "4"});
    CHECK_THAT(chosen(again->experiment()), Contains("cudnn: "));
    CHECK(again->run() == Trainer::End::completed);
    CHECK(losses("graphs").back() == losses("plain").back());
  }
  {
    const StandIn none("none");
    CHECK_THROWS_WITH(tiny.start_on(kGpu, "graphs", kRun),
                      Contains("[attention] the checkpoint's run used attention.backend = cudnn, which is "
                               "not possible here: ") &&
                          Contains("was not found. Start with --redecide"));
  }
}
