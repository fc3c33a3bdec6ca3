#include "apps/decide/tensor_parallel_overlap.h"

#include <algorithm>

#include "apps/step/step_plan.h"
#include "core/beside_compute.h"
#include "core/log.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/overrides.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

// How two ranks settle in which layers tensor parallel overlaps in blocks.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

constexpr const char* kNames[] = {"wqkv", "wo", "w13", "w2"};
constexpr BlockOverlap kAll{Overlap::blocks, Overlap::blocks, Overlap::blocks, Overlap::blocks};

std::string name_of(const char* layer) {
  return fmt::format("parallelism.enable_async_tensor_parallel {}", layer);
}

Experiment experiment(const Overrides& more = {}) {
  const Overrides all =
      model_of({.dim = 64, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 96}) +
      words(
          "--model.vocab_size 256 --training.seq_len 64 --training.local_batch_size 1 --training.device cpu "
          "--parallelism.tensor_parallel_degree 2 --parallelism.enable_async_tensor_parallel true") +
      more;
  return resolve_experiment(load_config("", all), nullptr, 2);
}

/// As both ranks settle it; throws what both refuse with.
Experiment settled(const Decisions& saved, const std::vector<std::string>& more = {}) {
  log::set_level(log::Level::warning);
  std::vector<std::unique_ptr<Experiment>> out(2);
  std::vector<std::string> refusals(2);
  run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    const auto rank = static_cast<size_t>(world.rank());
    out[rank] = std::make_unique<Experiment>(experiment(more));
    RankGroups ranks = groups_over(world, out[rank]->mesh);
    refusals[rank] = message_of([&] { settle_overlap(*out[rank], ranks, {DeviceType::cpu, 0}, saved); });
  });
  CHECK(refusals[0] == refusals[1]);
  if (refusals[0] != "no error") fail<ConfigError>("both ranks", "{}", refusals[0]);
  CHECK(out[0]->decisions == out[1]->decisions);
  CHECK(out[0]->shape.model_options.overlap == out[1]->shape.model_options.overlap);
  return std::move(*out[0]);
}

Decisions decided(const std::vector<std::string>& values) {
  Decisions out;
  for (size_t i = 0; i < values.size(); ++i) out.entries.push_back({name_of(kNames[i]), values[i], "before"});
  return out;
}

}  // namespace

TEST_CASE("each layer is carried out both ways, and the faster is a decision of all ranks") {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{},
        {"--model.converters", "[quantize.linear.float8]", "--activation_checkpoint.mode", "full"}}) {
    const Experiment e = settled({}, more);
    const BlockOverlap& overlap = e.shape.model_options.overlap;
    const Overlap chosen[] = {overlap.wqkv, overlap.wo, overlap.w13, overlap.w2};
    REQUIRE(e.decisions.entries.size() == 4);
    for (size_t i = 0; i < 4; ++i) {
      const Decisions::Entry* entry = e.decisions.find(name_of(kNames[i]));
      REQUIRE(entry);
      CHECK(entry->value == (chosen[i] == Overlap::blocks ? "blocks" : "bulk"));
      CHECK_THAT(entry->reason, Contains("in blocks ") && Contains("in bulk ") && !Contains(" 0.000 ms"));
    }
  }
}

TEST_CASE("a checkpoint's overlap is followed, one that is neither is refused") {
  const Experiment e = settled(decided({"bulk", "blocks", "bulk", "blocks"}));
  CHECK(e.shape.model_options.overlap == BlockOverlap{.wo = Overlap::blocks, .w2 = Overlap::blocks});
  CHECK(e.decisions.find(name_of("wo"))->reason == "before");
  CHECK_THROWS_WITH(settled(decided({"bulk", "blocks", "maybe", "blocks"})),
                    Contains("enable_async_tensor_parallel w13 = 'maybe', expected blocks or bulk"));
}

TEST_CASE("overlap is not decided without the key or without ranks that share a layer") {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--parallelism.enable_async_tensor_parallel", "false"},
        {"--parallelism.tensor_parallel_degree", "1"}}) {
    const Experiment e = settled({}, more);
    CHECK(e.decisions.entries.empty());
    CHECK(e.shape.model_options.overlap == BlockOverlap{});
    CHECK(open_overlap(e).empty());
  }
}

TEST_CASE("a plan has both ends, and in blocks all transfers of a block's layers are beside products") {
  const Experiment e = experiment({"--activation_checkpoint.mode", "none"});
  const std::vector<OpenDecision> open = open_overlap(e);
  REQUIRE(open.size() == 1);
  REQUIRE(open[0].outcomes.size() == 2);
  CHECK(e.shape.model_options.overlap == kAll);
  CHECK(open[0].outcomes[0].shape.model_options.overlap == kAll);
  CHECK(open[0].outcomes[1].shape.model_options.overlap == BlockOverlap{});
  int64_t sent[2] = {}, beside[2] = {};
  for (size_t i = 0; i < 2; ++i) {
    const StepPlan plan = record_first_rank(open[0].outcomes[i].shape, {DeviceType::cpu, 0}, e.mesh);
    const std::vector<bool> is_beside = beside_compute(plan.order);
    for (const RecordedEvent& event : plan.order.events) {
      if (event.kind != RecordedEvent::Kind::issue) continue;
      const auto index = static_cast<size_t>(event.index);
      const std::string& label = plan.order.labels[static_cast<size_t>(event.label)];
      const bool is_of_layer =
          std::ranges::any_of(kBlockLayers, [&](const BlockLayer& layer) { return layer.label == label; });
      if (!is_of_layer || plan.order.transfers[index].axis != "tp") continue;
      sent[i] += plan.order.transfers[index].sent_bytes();
      if (is_beside[index]) beside[i] += plan.order.transfers[index].sent_bytes();
    }
  }
  CHECK(sent[0] > 0);
  CHECK(sent[0] == sent[1]);
  CHECK(beside[0] == sent[0]);
  CHECK(10 * beside[1] == 4 * sent[1]);  // in bulk four calls of ten
}
