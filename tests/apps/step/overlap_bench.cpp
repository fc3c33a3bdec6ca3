// What tensor parallel's overlap gains on a link of set latency and bandwidth: two ranks as threads take each
// step twice in turns, once with every transfer waited for at once, once as it is trained. The second should
// be shorter by the transfers that the plan names as beside compute. Nothing is checked: times of a machine
// are no test.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "apps/step/step_plan.h"
#include "core/beside_compute.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/layout_run.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/waited_communicator.h"

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr int kRanks = 2, kPairs = 50;
constexpr BlockOverlap kBlocks{Overlap::blocks, Overlap::blocks, Overlap::blocks, Overlap::blocks};

TrainingShape shape_of(const BlockOverlap& overlap) {
  const LlamaConfig model{.dim = 2048,
                          .layers = 1,
                          .heads = 16,
                          .kv_heads = 16,
                          .head_dim = 128,
                          .ffn_dim = 4096,
                          .vocab_size = 256};
  TrainingShape shape = tiny_shape(model, 4, 256);
  shape.model_options.overlap = overlap;
  return shape;
}

struct Steps {
  std::vector<double> waited, overlapped;  ///< seconds, in turns
  std::vector<double> calls;  ///< seconds of each call that is waited for, in the fastest of the steps
  StepPlan plan;
};

class Ranks {
 public:
  Ranks(const TrainingShape& shape, std::unique_ptr<Communicator> world, std::unique_ptr<Communicator> spare)
      : run_(shape,
             std::make_unique<RankGroups>(std::move(world), std::move(spare), Layout{.tp = kRanks}.mesh()),
             {DeviceType::cpu, 0}) {
    run_->parameters().initialise(7);
  }
  double step(const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets) {
    const auto begin = std::chrono::steady_clock::now();
    run_->train_step({.inputs = inputs, .targets = targets, .document_start = {}, .positions = {}},
                     {.learning_rate = 1e-3,
                      .optimizer_step = ++steps_,
                      .valid_tokens = static_cast<int64_t>(targets.size())});
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  const StepPlan& plan() const { return run_.plan(); }

 private:
  EngineRun run_;
  int64_t steps_ = 0;
};

Steps run_steps(const BlockOverlap& overlap, const Link& link) {
  const TrainingShape shape = shape_on(shape_of(overlap), {.tp = kRanks});
  const std::vector<int32_t> inputs = random_tokens(shape.batch * shape.sequence, 256, 1),
                             targets = random_tokens(shape.batch * shape.sequence, 256, 2);
  Steps out;
  run_thread_ranks({.ranks = kRanks, .link = link}, [&](Communicator& world) {
    const auto group = [&] { return world.split("world", {0, 1}); };
    std::vector<double> calls;
    Ranks waited(shape, make_waited(group(), calls), make_waited(group(), calls)),
        overlapped(shape, group(), group());
    for (int pair = -1; pair < kPairs; ++pair) {
      calls.clear();
      const double waited_seconds = waited.step(inputs, targets),
                   overlapped_seconds = overlapped.step(inputs, targets);
      if (world.rank() != 0 || pair < 0) continue;
      out.waited.push_back(waited_seconds);
      out.overlapped.push_back(overlapped_seconds);
      if (pair == 0) out.calls = calls;
      for (size_t i = 0; i < calls.size(); ++i) out.calls[i] = std::min(out.calls[i], calls[i]);
    }
    if (world.rank() == 0) out.plan = overlapped.plan();
  });
  return out;
}

struct Transfers {
  double all = 0, beside = 0;  ///< seconds by the link
  double beside_waited =
      0;  ///< what those beside compute take where they are waited for: their copies and sums too
};

Transfers transfers_of(const Steps& steps, const Link& link) {
  const StepPlan& plan = steps.plan;
  const std::vector<bool> is_beside = beside_compute(plan.order);
  Transfers out;
  size_t call = 0;
  for (size_t i = 0; i < is_beside.size(); ++i) {
    const RecordedTransfer& t = plan.order.transfers[i];
    if (t.ranks == 1) continue;
    const double seconds = link.seconds(t.sent_bytes()) + link.latency_seconds;
    out.all += seconds;
    const double waited = steps.calls.at(call++);
    if (!is_beside[i]) continue;
    out.beside += seconds;
    out.beside_waited += waited;
  }
  REQUIRE(call == steps.calls.size());
  return out;
}

double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
}

// The link is fast enough for every transfer to end before the product beside it.
void print_gain(const char* name, const BlockOverlap& overlap, const Link& link) {
  const Steps steps = run_steps(overlap, link);
  const Transfers t = transfers_of(steps, link);
  std::vector<double> fell;
  for (size_t i = 0; i < steps.waited.size(); ++i) fell.push_back(steps.waited[i] - steps.overlapped[i]);
  const auto part = [&](double q) { return 100 * quantile(fell, q) / t.beside_waited; };
  fmt::print(
      "{:6}: transfers {:.1f} ms, of which {:.1f} ms are named beside compute, {:.1f} ms where they are "
      "waited "
      "for; {} pairs of steps, medians: "
      "{:.1f} ms waited for, {:.1f} ms overlapped; falls by {:.1f} ms, {:.1f}% of what is named (half of the "
      "pairs {:.1f} to {:.1f}%)\n",
      name, 1e3 * t.all, 1e3 * t.beside, 1e3 * t.beside_waited, kPairs, 1e3 * quantile(steps.waited, 0.5),
      1e3 * quantile(steps.overlapped, 0.5), 1e3 * quantile(fell, 0.5), part(0.5), part(0.25), part(0.75));
}

}  // namespace

TEST_CASE("in bulk") { print_gain("bulk", {}, {.latency_seconds = 2e-4, .bytes_per_second = 1.6e8}); }
TEST_CASE("in blocks") { print_gain("blocks", kBlocks, {.latency_seconds = 2e-4, .bytes_per_second = 4e8}); }
