#include "apps/decide/cpu_products.h"

#include "tests/apps/decide/settled_by_two.h"

// How two ranks settle in which way bf16 is multiplied on the CPU.

using namespace ottava;
using Catch::Contains;
using cpu::Bf16Products;

namespace {

constexpr const char *kMatmul = "cpu.bf16_matmul", *kAttention = "cpu.bf16_attention";
constexpr DecisionSource kSaved = DecisionSource::checkpoint, kAfresh = DecisionSource::afresh;

class Job : public test::JobOfTwo {
 public:
  Job() : JobOfTwo({"--model.flavor", "debugmodel", "--training.seq_len", "1024"}) {}
  void save(const std::string& matmul, const std::string& attention) const {
    JobOfTwo::save(4, {{kMatmul, matmul, "before"}, {kAttention, attention, "before"}});
  }
};

}  // namespace

TEST_CASE("how bf16 is multiplied is measured where there is a choice, recorded and the same on all ranks") {
  const Job job;
  const Experiment e = job.settle(kSaved);
  const bool choice = cpu::multiplies_bf16_directly();
  for (const char* key : {kMatmul, kAttention}) {
    INFO(key);
    const Decisions::Entry* entry = e.decisions.find(key);
    REQUIRE((entry != nullptr) == choice);
    if (!choice) continue;
    CHECK_THAT(entry->reason, Contains("direct ") && Contains("widened ") && Contains(" ms"));
    const Bf16Products way = key == kMatmul ? e.shape.cpu_products.matmul : e.shape.cpu_products.attention;
    CHECK(entry->value == name_of(way));
  }
  if (!choice) CHECK(e.shape.cpu_products == cpu::usual_products());
  const Experiment open = resolve_experiment(job.config(), nullptr, 2);
  CHECK(open.shape.cpu_products == cpu::usual_products());
  const std::vector<OpenDecision> decisions = open_decisions(open);
  REQUIRE(decisions.size() == (choice ? 2 : 0));
  for (const OpenDecision& decision : decisions) {
    REQUIRE(decision.outcomes.size() == 2);
    CHECK(decision.outcomes[0].shape.cpu_products == cpu::usual_products());
    CHECK(decision.outcomes[1].shape.cpu_products != cpu::usual_products());
  }
}

TEST_CASE("what the configuration says of bf16, what is f32 and what is too small to gain is not measured") {
  const Job job;
  const Experiment widened =
      job.settle(kSaved, {"--cpu.bf16_matmul", "widened", "--cpu.bf16_attention", "widened"});
  CHECK(widened.decisions.entries.empty());
  CHECK(widened.shape.cpu_products == cpu::ProductChoice{Bf16Products::widened, Bf16Products::widened});
  CHECK(open_cpu_products(widened).empty());
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--training.seq_len", "64"},
                                               {"--training.mixed_precision_param", "float32"}}) {
    const Experiment e = job.settle(kSaved, more);
    CHECK(e.decisions.entries.empty());
    CHECK(e.shape.cpu_products == cpu::usual_products());
    CHECK(open_cpu_products(e).empty());
  }
}

TEST_CASE("ranks that share sequences or layers count their own part of a micro-batch") {
  const Job job;
  const auto measures = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--training.seq_len", "512", "--model.vocab_size", "2256"});
    const Experiment open = resolve_experiment(job.config(more), nullptr, 2);
    // Half of them are too few.
    const double flops = model_flops_per_token(open.shape.model, 512) * 512 * open.shape.batch;
    CHECK((flops >= kFewestFlops && flops < 2 * kFewestFlops));
    const bool is_measured = job.settle(kAfresh, more).decisions.find(kMatmul) != nullptr;
    CHECK(open_cpu_products(open).empty() == !is_measured);
    return is_measured;
  };
  CHECK(measures({}) == cpu::multiplies_bf16_directly());
  CHECK_FALSE(measures({"--parallelism.context_parallel_degree", "2"}));
  CHECK_FALSE(measures({"--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "2",
                        "--parallelism.pipeline_parallel_microbatch_size", "1"}));
}

TEST_CASE("direct products are taken where there are instructions and refused by all ranks elsewhere") {
  const Job job;
  for (const char* key : {kMatmul, kAttention}) {
    INFO(key);
    const std::vector<std::string> direct{std::string("--") + key, "direct", "--training.seq_len", "64"};
    if (cpu::multiplies_bf16_directly()) {
      const cpu::ProductChoice chosen = job.settle(kSaved, direct).shape.cpu_products;
      CHECK((key == kMatmul ? chosen.matmul : chosen.attention) == Bf16Products::direct);
    } else {
      CHECK_THROWS_WITH(
          job.settle(kSaved, direct),
          Contains(std::string(key) +
                   " is direct, but this machine has no bf16 instructions: set it to auto or widened"));
    }
  }
}

TEST_CASE("a checkpoint's way of multiplying bf16 is followed, and refused where it cannot be") {
  const Job job;
  job.save("widened", "widened");
  const Experiment widened = job.settle(kSaved);
  CHECK(widened.shape.cpu_products == cpu::ProductChoice{Bf16Products::widened, Bf16Products::widened});
  CHECK(widened.decisions.find(kMatmul)->reason == "before");
  job.save("direct", "direct");
  if (cpu::multiplies_bf16_directly()) {
    CHECK(job.settle(kSaved).shape.cpu_products ==
          cpu::ProductChoice{Bf16Products::direct, Bf16Products::direct});
  } else {
    CHECK_THROWS_WITH(job.settle(kSaved),
                      Contains("the checkpoint's run used cpu.bf16_matmul = direct, but this machine has no "
                               "bf16 instructions: start with --redecide"));
  }
  job.save("perhaps", "direct");
  CHECK_THROWS_WITH(job.settle(kSaved), Contains("the checkpoint has cpu.bf16_matmul = 'perhaps', expected "
                                                 "direct or widened: start with --redecide"));
}
