#include "apps/decide/decide.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "apps/step/step_plan.h"
#include "tests/apps/decide/settled_by_two.h"
#include "tests/support/thread_groups.h"

// What two ranks settle: for a model that fits any machine, and for one that fits none. Only `meta` runs.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

constexpr const char* kKey = "parallelism.fsdp_reduce_every_microbatch";

class Job : public JobOfTwo {
 public:
  enum class Size { small, impossible };
  explicit Job(Size size)
      : JobOfTwo({"--model.flavor", size == Size::small ? "debugmodel" : "405B", "--training.seq_len", "64",
                  "--training.global_batch_size", "4"}) {}

  std::string value(DecisionSource source, const std::vector<std::string>& more = {}) const {
    const Experiment e = settle(source, more);
    REQUIRE(e.decisions.find(kKey));
    const std::string value = e.decisions.find(kKey)->value;
    CHECK(e.shape.parameters.reduce_every_micro_batch == (value == "true"));
    return value;
  }
  void save(int step, const std::string& value) const { JobOfTwo::save(step, {{kKey, value, "before"}}); }
};

constexpr DecisionSource kSaved = DecisionSource::checkpoint, kAfresh = DecisionSource::afresh;

}  // namespace

TEST_CASE("gradients are reduced once where whole ones fit, else after every micro-batch") {
  const Job small(Job::Size::small), impossible(Job::Size::impossible);
  const Experiment once = small.settle(kSaved);
  CHECK(small.value(kSaved) == "false");
  CHECK_THAT(once.decisions.find(kKey)->reason,
             Contains("less traffic, and ") && Contains("MiB free suffice"));
  CHECK_THAT(once.decisions.made_for, Contains("2 x 1 sequence of 64 tokens on each rank, cpu"));
  CHECK(impossible.value(kSaved) == "true");
  CHECK_THAT(impossible.settle(kSaved).decisions.find(kKey)->reason,
             Contains("whole gradients would take ") && Contains(" free"));
  // A checkpoint's decision is followed, that of an earlier version too.
  small.save(4, "true");
  CHECK(small.value(kSaved) == "true");
  std::string earlier = once.decisions.made_for;
  earlier.replace(earlier.find("1 sequence "), 11, "1 sequences ");
  small.write(8, to_json({.made_for = earlier, .entries = {{kKey, "true", "before"}}}));
  CHECK(small.value(kSaved) == "true");
  small.write(8, to_json({.made_for = earlier + "!", .entries = {{kKey, "true", "before"}}}));
  CHECK(small.value(kSaved) == "false");
}

TEST_CASE("codes of gathered FP8 weights are kept where whole ones fit, else made again") {
  constexpr const char* kCodes = "quantize.linear.float8.keep_weight_codes";
  const Job small(Job::Size::small), impossible(Job::Size::impossible);
  const std::vector<std::string> fp8{"--model.converters", "[quantize.linear.float8]"};
  auto with = [&](const char* key, const char* value) {
    std::vector<std::string> more = fp8;
    more.insert(more.end(), {key, value});
    return more;
  };
  const Experiment kept = small.settle(kSaved, fp8), made = impossible.settle(kSaved, fp8);
  REQUIRE(kept.decisions.find(kCodes));
  CHECK(kept.decisions.find(kCodes)->value == "true");
  CHECK_THAT(kept.decisions.find(kCodes)->reason,
             Contains("weights are quantized and gathered once per step, and ") && Contains("free suffice"));
  CHECK(kept.shape.parameters.keeps_float8_codes);
  REQUIRE(made.decisions.find(kCodes));
  CHECK(made.decisions.find(kCodes)->value == "false");
  CHECK_THAT(made.decisions.find(kCodes)->reason, Contains("codes of whole weights would take "));
  CHECK_FALSE(made.shape.parameters.keeps_float8_codes);
  // What is asked for, or makes no difference, is not decided.
  const std::string option = std::string("--") + kCodes;
  const Experiment asked = small.settle(kSaved, with(option.c_str(), "false"));
  CHECK_FALSE(asked.decisions.find(kCodes));
  CHECK_FALSE(asked.shape.parameters.keeps_float8_codes);
  const Experiment wished = impossible.settle(kSaved, with(option.c_str(), "true"));
  CHECK_FALSE(wished.decisions.find(kCodes));
  CHECK(wished.shape.parameters.keeps_float8_codes);
  for (const auto& [key, value] :
       {std::pair("--quantize.linear.float8.enable_fsdp_float8_all_gather", "true"),
        std::pair("--parallelism.fsdp_reshard_after_forward", "never"),
        std::pair("--parallelism.data_parallel_replicate_degree", "2")})
    CHECK_FALSE(small.settle(kSaved, with(key, value)).decisions.find(kCodes));
  CHECK_FALSE(small.settle(kSaved).decisions.find(kCodes));
  // A checkpoint's decision is followed.
  small.write(4, to_json({.made_for = kept.decisions.made_for, .entries = {{kCodes, "false", "before"}}}));
  CHECK_FALSE(small.settle(kSaved, fp8).shape.parameters.keeps_float8_codes);
}

TEST_CASE("mode auto recomputes as little as fits, by every start's memory") {
  constexpr const char* kMode = "activation_checkpoint.mode";
  const std::vector<std::string> automatic{std::string("--") + kMode, "auto"};
  const Job small(Job::Size::small), impossible(Job::Size::impossible);
  const Experiment all_kept = small.settle(kSaved, automatic),
                   none_fits = impossible.settle(kSaved, automatic);
  REQUIRE(all_kept.decisions.find(kMode));
  CHECK(all_kept.decisions.find(kMode)->value == "none");
  CHECK_THAT(all_kept.decisions.find(kMode)->reason,
             Contains("the fastest that fits, and ") && Contains("MiB free suffice"));
  CHECK(all_kept.shape.model_options.recompute == std::vector(6, Recompute::nothing));
  REQUIRE(none_fits.decisions.find(kMode));
  CHECK(none_fits.decisions.find(kMode)->value == "full");
  CHECK_THAT(none_fits.decisions.find(kMode)->reason, Contains("less recomputation would take "));
  CHECK(none_fits.shape.model_options.recompute == std::vector(126, Recompute::block));
  CHECK_FALSE(small.settle(kSaved, {automatic[0], "full"}).decisions.find(kMode));
  small.write(4, to_json({.made_for = all_kept.decisions.made_for, .entries = {{kMode, "full", "before"}}}));
  CHECK(small.settle(kSaved, automatic).decisions.find(kMode)->value == "none");
}

TEST_CASE("what mode auto chooses from takes less the slower it is") {
  std::vector<std::string> config{
      "--activation_checkpoint.mode", "auto", "--model.flavor", "8B", "--training.seq_len", "8192",
      "--training.local_batch_size",  "1"};
  const Experiment open = resolve_experiment(load_config("", config), nullptr, 1);
  const std::vector<OpenDecision> decisions = open_decisions(open);
  const auto mode = std::ranges::find(decisions, "activation_checkpoint.mode", &OpenDecision::name);
  REQUIRE(mode != decisions.end());
  std::vector<std::string> names;
  std::vector<int64_t> bytes;
  const auto need = [&](const TrainingShape& shape) {
    return record_first_rank(shape, {DeviceType::cpu, 0}, open.mesh).memory.total_bytes();
  };
  for (const auto& [name, shape] : mode->outcomes) names.push_back(name), bytes.push_back(need(shape));
  CHECK(names == std::vector<std::string>{
                     "none", "op of 1 in 4 blocks", "op of 1 in 2 blocks", "op of 3 in 4 blocks", "op",
                     "op, all but attention of 1 in 8 blocks", "op, all but attention of 1 in 4 blocks",
                     "op, all but attention of 1 in 2 blocks", "op, all but attention of 3 in 4 blocks",
                     "all_but_attention", "full"});
  const auto& half = mode->outcomes[7].shape.model_options.recompute;
  CHECK(half[0] == Recompute::elementwise);
  CHECK(half[1] == Recompute::all_but_attention);
  CHECK(std::ranges::count(half, Recompute::all_but_attention) == 16);
  CHECK(std::ranges::is_sorted(bytes, std::greater()));
  // Each is chosen where there is room for it and not for the one before.
  for (size_t i = 0; i < names.size(); ++i) {
    const Experiment e = decided_by_memory(open, [&](const TrainingShape& shape) {
      return std::vector{MemoryNeed{.bytes = need(shape), .available = bytes[i], .share = 1}};
    });
    CHECK(e.decisions.find("activation_checkpoint.mode")->value == names[i]);
    CHECK(e.shape.model_options.recompute == mode->outcomes[i].shape.model_options.recompute);
  }
}

TEST_CASE("mode auto recomputes norms and activations before it gives up whole gradients") {
  const Experiment open = resolve_experiment(
      load_config("", {"--activation_checkpoint.mode", "auto", "--model.flavor", "8B", "--training.seq_len",
                       "8192", "--training.local_batch_size", "1", "--training.global_batch_size", "32"}),
      nullptr, 8);
  const auto need = [&](const TrainingShape& shape) {
    return record_first_rank(shape, {DeviceType::cpu, 0}, open.mesh).memory.total_bytes();
  };
  const auto decided = [&](Recompute beside_whole_gradients, int64_t bytes_short) {
    TrainingShape shape = open.shape;
    shape.parameters.reduce_every_micro_batch = false;
    shape.model_options.recompute.assign(32, beside_whole_gradients);
    const int64_t available = need(shape) - bytes_short;
    const Experiment e = decided_by_memory(open, [&](const TrainingShape& one) {
      return std::vector{MemoryNeed{.bytes = need(one), .available = available, .share = 1}};
    });
    return std::pair(e.decisions.find(kKey)->value, e.decisions.find("activation_checkpoint.mode")->value);
  };
  using Values = std::pair<std::string, std::string>;
  CHECK(decided(Recompute::nothing, 0) == Values{"false", "none"});
  CHECK(decided(Recompute::nothing, 1) == Values{"false", "op of 1 in 4 blocks"});
  CHECK(decided(Recompute::elementwise, 0) == Values{"false", "op"});
  CHECK(decided(Recompute::elementwise, 1) == Values{"true", "none"});
}

TEST_CASE("what mode auto recomputes leaves room for what the checkpoint's run decided") {
  const Job job(Job::Size::small);
  const auto with_batch = [](int64_t batch) {
    return words(
               "--activation_checkpoint.mode auto --model.n_layers 24 "
               "--model.converters [quantize.linear.float8]") +
           Overrides{"--training.local_batch_size", std::to_string(batch), "--training.global_batch_size",
                     std::to_string(4 * batch)};
  };
  // As many sequences as take 2.5 times what is free, of which a seventh is enough if blocks keep no
  // more than their input.
  std::vector<int64_t> batches(2);
  run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    const Experiment e = resolve_experiment(job.config(with_batch(64)), nullptr, 2);
    RankGroups ranks = groups_over(world, e.mesh);
    const MemoryNeed need = tightest(memory_needs(e, e.shape, ranks, {DeviceType::cpu, 0}));
    batches[static_cast<size_t>(world.rank())] = 160 * need.available / need.bytes;
  });
  CHECK(batches[0] == batches[1]);
  const std::vector<std::string> large = with_batch(batches[0]);
  constexpr const char *kMode = "activation_checkpoint.mode",
                       *kCodes = "quantize.linear.float8.keep_weight_codes";
  job.write(4, to_json({.made_for = job.settle(kAfresh, large).decisions.made_for,
                        .entries = {{kKey, "false", "before"}, {kCodes, "true", "before"}}}));
  const Experiment followed = job.settle(kSaved, large);
  for (const char* name : {kKey, kCodes}) CHECK(followed.decisions.find(name)->reason == "before");
  CHECK_FALSE(followed.shape.parameters.reduce_every_micro_batch);
  CHECK(followed.shape.parameters.keeps_float8_codes);
  CHECK(followed.decisions.find(kMode)->value != "none");
}

TEST_CASE("what memory allows is what will be decided, and is not recorded") {
  const std::vector<std::string> fp8{"--model.converters", "[quantize.linear.float8]"};
  for (const auto size : {Job::Size::small, Job::Size::impossible}) {
    const Job job(size);
    const FsdpOptions decided = job.settle(kAfresh, fp8).shape.parameters;
    CHECK(decided.keeps_float8_codes == (size == Job::Size::small));
    std::vector<FsdpOptions> allowed(2);
    std::vector<size_t> recorded(2);
    std::vector<std::optional<Experiment>> planned(2);
    run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
      const auto rank = static_cast<size_t>(world.rank());
      const Experiment open = resolve_experiment(job.config(fp8), nullptr, 2);
      RankGroups ranks = groups_over(world, open.mesh);
      const Experiment e = as_memory_allows(open, ranks, {DeviceType::cpu, 0});
      allowed[rank] = e.shape.parameters;
      recorded[rank] = e.decisions.entries.size();
      planned[rank] = decided_by_memory(open, [&](const TrainingShape& shape) {
        return memory_needs(open, shape, ranks, {DeviceType::cpu, 0});
      });
    });
    for (size_t rank : {0, 1}) {
      CHECK(allowed[rank].keeps_float8_codes == decided.keeps_float8_codes);
      CHECK(allowed[rank].reduce_every_micro_batch == decided.reduce_every_micro_batch);
      CHECK(recorded[rank] == 0);
      const FsdpOptions& by_plan = planned[rank]->shape.parameters;
      CHECK(by_plan.keeps_float8_codes == decided.keeps_float8_codes);
      CHECK(by_plan.reduce_every_micro_batch == decided.reduce_every_micro_batch);
      CHECK(planned[rank]->decisions.entries.size() == 2);
    }
  }
}

TEST_CASE("what the configuration says, or what makes no difference, is not decided") {
  const Job job(Job::Size::small);
  const std::string option = std::string("--") + kKey;
  CHECK(job.settle(kSaved, {option, "true"}).decisions.entries.empty());
  CHECK(job.settle(kSaved, {option, "true"}).shape.parameters.reduce_every_micro_batch);
  // Where it would be decided otherwise.
  const Experiment asked = Job(Job::Size::impossible).settle(kSaved, {option, "false"});
  CHECK_FALSE(asked.decisions.find(kKey));
  CHECK_FALSE(asked.shape.parameters.reduce_every_micro_batch);
  CHECK(job.settle(kSaved, {"--training.global_batch_size", "2"}).decisions.entries.empty());
  CHECK(job.settle(kSaved, {"--parallelism.data_parallel_replicate_degree", "2"}).decisions.entries.empty());
}

TEST_CASE("a checkpoint's decision is followed, --redecide makes it again") {
  const Job job(Job::Size::small);
  job.save(4, "true");
  CHECK(job.value(kSaved) == "true");
  CHECK(job.settle(kSaved).decisions.find(kKey)->reason == "before");
  CHECK(job.value(kAfresh) == "false");
  SECTION("the newest one's, or that of the step asked for") {
    job.save(8, "false");
    CHECK(job.value(kSaved) == "false");
    CHECK(job.value(kSaved, {"--checkpoint.load_step", "4"}) == "true");
  }
  SECTION("of the newest that has readable ones") {
    job.write(8, "{\"made_for\":");
    CHECK(job.value(kSaved) == "true");
  }
  SECTION("unless it was made for another layout") {
    CHECK(job.value(kSaved, {"--training.global_batch_size", "6"}) == "false");
    job.write(8, to_json({.made_for = "another", .entries = {{kKey, "true", ""}}}));
    CHECK(job.value(kSaved) == "false");
  }
  SECTION("unless checkpoints are off") {
    CHECK(job.value(kSaved, {"--checkpoint.enable", "false"}) == "false");
  }
}

TEST_CASE("a decision that cannot be followed is refused on all ranks and asks for --redecide") {
  const Job job(Job::Size::impossible);
  job.save(4, "false");
  CHECK_THROWS_WITH(
      job.settle(kSaved),
      Contains("[decisions] the checkpoint's run used parallelism.fsdp_reduce_every_microbatch "
               "= false, which needs ") &&
          Contains(
              " are free: free memory, or start with --redecide, which changes the order of gradient sums"));
  CHECK(job.value(kAfresh) == "true");
  job.save(4, "perhaps");
  CHECK_THROWS_WITH(job.settle(kSaved),
                    Contains("= 'perhaps', expected one of false, true: start with --redecide"));
  CHECK(job.value(kAfresh) == "true");
}
