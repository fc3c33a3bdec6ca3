#include "apps/config/sm_budget.h"

#include <algorithm>

#include "apps/decide/rehearsal.h"
#include "core/cuda/runtime.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "parallel/comm/solo_communicator.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
#include "tests/support/layout_run.h"
#include "tests/support/nccl_ranks.h"

// SMs kept for collectives: what is refused, what is said, and that products and NCCL are told the same.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

const Device kCpu{DeviceType::cpu, 0}, kGpu{DeviceType::cuda, 0};

const char* no_variables(const char*) { return nullptr; }

}  // namespace

TEST_CASE("an SM budget that cannot be kept is refused before ranks connect") {
  check_sm_budget(0, kCpu, [](const char*) { return "1"; });
  CHECK_THROWS_WITH(check_sm_budget(16, kCpu, no_variables),
                    Contains("[comm] sm_budget is 16, but the device is cpu, which has no SMs: set it to 0"));
  CHECK_THROWS_WITH(load_config("", {"--comm.sm_budget", "65"}),
                    Contains("comm.sm_budget") && Contains("64"));
}

TEST_CASE("an SM budget that a GPU cannot keep is refused before ranks connect") {
  if (!has_gpu()) return skip(kNoGpu);
  const int all = cuda::sm_count(0);
  CHECK_NOTHROW(check_sm_budget(all - 1, kGpu, no_variables));
  CHECK_THROWS_WITH(
      check_sm_budget(all, kGpu, no_variables),
      Contains(fmt::format(
          "[comm] sm_budget is {}, but GPU 0 has {} SMs, so that none would be left for matrix products", all,
          all)));
  for (std::string_view set :
       {"NCCL_MAX_CTAS", "NCCL_MIN_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS"}) {
    CHECK_THROWS_WITH(
        check_sm_budget(2, kGpu, [&](const char* name) { return set == name ? "32" : nullptr; }),
        Contains(fmt::format("the environment has {}=32, which takes precedence", set)));
  }
}

TEST_CASE("calls of several lanes crowd a GPU with few SMs") {
  const auto crowd = [](int tp, int cp, int pp, int sms, int64_t budget = 0) {
    ParallelismConfig p;
    p.tensor_parallel_degree = tp;
    p.context_parallel_degree = cp;
    p.pipeline_parallel_degree = pp;
    return may_crowd(p, budget, sms);
  };
  constexpr int kH100 = 132, kA100 = 108, kH20 = 78, kSpark = 48;
  CHECK_FALSE(crowd(8, 2, 2, kH100));
  CHECK(crowd(8, 2, 2, kA100));
  CHECK_FALSE(crowd(8, 1, 2, kA100));
  CHECK(crowd(8, 1, 2, kH20));
  CHECK_FALSE(crowd(8, 1, 2, kH20, 16));
  CHECK(crowd(2, 1, 1, kSpark));
  CHECK_FALSE(crowd(1, 1, 1, 16));  // one lane's calls are one after the other
}

TEST_CASE("what an SM budget means is said") {
  SoloCommunicator alone;
  auto staged = make_dry_run_world(0, 2);
  const Mesh two({.dp_shard = 2}, 2);
  CHECK(decide_sm_budget(0, kCpu, alone, two).reason == "off: comm.sm_budget is 0");
  CHECK(decide_sm_budget(2, kGpu, alone, two).reason ==
        "off: comm.sm_budget is 2, but one rank has no collectives");
  const SmBudget off = decide_sm_budget(2, kGpu, *staged, two);
  CHECK(off.reason ==
        "off: comm.sm_budget is 2, but ranks exchange tensors through host memory (dry_run), which takes no "
        "SMs");
  CHECK(off.products == 0);
}

TEST_CASE(
    "products of a rehearsal leave the SMs that NCCL was given, and decisions say for how many they are") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  const int all = cuda::sm_count(0);
  std::vector<SmBudget> budgets(2);
  std::vector<Decisions> decided(2);
  run_nccl_mesh({.dp_shard = 2}, [&](std::unique_ptr<RankGroups> groups, int rank) {
    const auto r = static_cast<size_t>(rank);
    Experiment e{.config = {},
                 .tokenizer = nullptr,
                 .mesh = Mesh({.dp_shard = 2}, 2),
                 .shape = tiny_shape(tiny_llama(), 1, 16),
                 .decisions = {}};
    e.config.training.gemm_cache = "off";
    const Device gpu{DeviceType::cuda, rank};
    e.sm_budget = budgets[r] = decide_sm_budget(1, gpu, *groups->world, e.mesh);
    Stream stream = Stream::cuda(rank);
    rehearse(e, record_step(e.shape, gpu, *groups), stream, *groups);
    decided[r] = e.decisions;
    const SmBudget tensor_parallel =
        decide_sm_budget(1, gpu, *groups->world, Mesh({.dp_shard = 1, .tp = 2}, 2));
    if (tensor_parallel.products != 0 || tensor_parallel.collectives != 1)
      throw std::runtime_error("tensor parallel takes nothing from products");
  });
  for (const SmBudget& b : budgets) {
    CHECK(b.collectives + b.products == all);
    CHECK(b.reason ==
          fmt::format("a call of NCCL's takes 1 of {} SMs at most, matrix products are planned for {}", all,
                      all - 1));
  }
  CHECK(decided[0] == decided[1]);
  int64_t products = 0;
  for (const Decisions::Entry& entry : decided[0].entries) {
    if (entry.name == "gemm library") continue;
    CHECK(entry.name.ends_with(fmt::format(" on {} SMs", all - 1)));
    ++products;
  }
  CHECK(products > 10);
}
