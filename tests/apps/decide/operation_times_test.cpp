#include "apps/decide/operation_times.h"

#include <algorithm>
#include <atomic>

#include "tests/support/catch.h"
#include "tests/support/overrides.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;

namespace {

const Device kCpu{DeviceType::cpu, 0};

Experiment tiny(int ranks, const Overrides& more = {}) {
  const Overrides all =
      model_of({.dim = 64, .layers = 1, .heads = 2, .kv_heads = 2, .ffn = 64}) +
      Overrides{"--model.vocab_size", "256", "--training.seq_len", "32", "--training.local_batch_size", "1"} +
      more;
  return resolve_experiment(load_config("", all), nullptr, ranks);
}

}  // namespace

TEST_CASE("a step's time is that of its operations, and a difference that of what the other has not") {
  const Experiment plain = tiny(1), float8 = tiny(1, {"--model.converters", "[quantize.linear.float8]"});
  const StepPlan without = record_first_rank(plain.shape, kCpu, plain.mesh),
                 with = record_first_rank(float8.shape, kCpu, float8.mesh);
  Stream stream = Stream::cpu();
  OperationTimes times(stream, 256);
  const double all = times.of(with), more = times.beyond(with, without), less = times.beyond(without, with);
  CHECK(times.beyond(with, with) == 0);
  CHECK(more > 0);
  CHECK(less > 0);
  CHECK(all > more);
  CHECK(times.of(with) == all);                           // kept, not measured again
  CHECK(times.of(without) - less == Approx(all - more));  // what both have

  // Twice the calls is twice the time.
  StepPlan twice = with;
  for (RecordedOperation& o : twice.operations) o.calls *= 2;
  CHECK(times.of(twice) == Approx(2 * all));
  CHECK(times.beyond(twice, with) == Approx(all));
}

TEST_CASE("collectives that a step waits for are timed on their ranks; those beside compute are not") {
  std::atomic<int> wrong = 0;  // assertions belong to one thread
  run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    const Experiment e = tiny(2, {"--parallelism.tensor_parallel_degree", "2"});
    RankGroups ranks = groups_over(world, e.mesh);
    Stream stream = Stream::cpu();
    const auto order_of = [](std::string axis, std::string_view collective, std::string label, bool beside) {
      RecordedOrder order;
      order.transfers.push_back(
          {.axis = std::move(axis), .ranks = 2, .calls = {{collective, std::move(label), 1024, 512}}});
      order.events.push_back({RecordedEvent::Kind::issue});
      if (beside) order.events.push_back({RecordedEvent::Kind::operation});
      order.events.push_back({RecordedEvent::Kind::wait});
      return order;
    };
    const auto waited = [&](const RecordedOrder& order) { return waited_milliseconds(stream, ranks, order); };
    wrong += waited(order_of("dp_shard", "all_gather", "weights", false)) != 0;
    wrong += waited(order_of("world", "all_reduce", "loss", false)) != 0;
    wrong += waited(order_of("world", "all_reduce", "activation amaxes", false)) <= 0;
    for (const std::string_view collective : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}) {
      wrong += waited(order_of("tp", collective, "x", false)) <= 0;
      wrong += waited(order_of("tp", collective, "x", true)) != 0;
    }
    const StepPlan step = record_first_rank(e.shape, kCpu, e.mesh);
    wrong += waited(step.order) <= 0;
  });
  CHECK(wrong == 0);
}

TEST_CASE("maxima of amaxes in recorded steps are timed, among the ranks of a pipeline's stage too") {
  const auto waited = [](int ranks, const std::vector<std::string>& more) {
    std::vector<double> out(static_cast<size_t>(ranks));
    run_thread_ranks({.ranks = ranks}, [&](Communicator& world) {
      const Experiment e = tiny(ranks, more);
      RankGroups groups = groups_over(world, e.mesh);
      Stream stream = Stream::cpu();
      const StepPlan step = record_first_rank(e.shape, kCpu, e.mesh);
      out[static_cast<size_t>(world.rank())] = waited_milliseconds(stream, groups, step.order);
    });
    return out;
  };
  const std::vector<std::string> float8{"--model.converters", "[quantize.linear.float8]"};
  const Overrides stages =
      words("--parallelism.pipeline_parallel_degree 2 --model.n_layers 2 --training.local_batch_size 2");
  CHECK(waited(2, {}) == std::vector<double>(2, 0.0));
  CHECK(std::ranges::min(waited(2, float8)) > 0);
  CHECK(waited(4, stages) == std::vector<double>(4, 0.0));
  CHECK(std::ranges::min(waited(4, stages + float8)) > 0);
}
