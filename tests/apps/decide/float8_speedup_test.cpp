#include "apps/decide/float8_speedup.h"
#include "apps/config/float8_ratios.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "apps/config/float8_ratios.h"
#include "apps/decide/decide.h"
#include "core/held_memory.h"
#include "tests/support/devices.h"
#include "tests/support/overrides.h"
#include "tests/support/tiny_training.h"

// quantize.linear.float8.auto on a GPU, which measures. What ratios mean and where else they come from:
// float8_auto_test.cpp.

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

namespace {

const Device kGpu{DeviceType::cuda, 0};

bool has_float8_gpu() {
  return has_gpu() && !fp8::recipes_of_compute_capability(cuda::compute_capability(0)).empty();
}

Experiment settled(const TinyTraining& tiny, DecisionSource source) {
  const Config c = tiny.config("run", {"--training.mixed_precision_param", "bfloat16", "--model.converters",
                                       "[quantize.linear.float8]", "--quantize.linear.float8.auto", "true",
                                       "--checkpoint.enable", "true"});
  RankGroups ranks = solo_rank_groups();
  Experiment e = resolve_experiment(c, load_tokenizer(c), 1, cuda::compute_capability(0));
  settle_decisions(e, ranks, kGpu, source);
  return e;
}

}  // namespace

TEST_CASE("every recipe that the GPU multiplies is timed by the operations of a step, in memory given back") {
  if (!has_float8_gpu()) return skip("there is no GPU with FP8");
  const TinyTraining tiny;
  for (const fp8::RecipeName recipe : fp8::recipes_of_compute_capability(cuda::compute_capability(0))) {
    INFO(fp8::name_of(recipe));
    const Config c = tiny.config(
        "run", words("--training.mixed_precision_param bfloat16 --model.converters [quantize.linear.float8] "
                     "--quantize.linear.float8.auto true --model.dim 128 --model.ffn_dim 128 "
                     "--model.n_kv_heads 2 --model.n_layers 1 --training.seq_len 128 "
                     "--training.local_batch_size 1") +
                   Overrides{"--quantize.linear.float8.recipe_name", std::string(fp8::name_of(recipe))});
    RankGroups ranks = solo_rank_groups();
    const int64_t held = held_memory(kGpu).now;
    const auto measured =
        measure_float8(resolve_experiment(c, load_tokenizer(c), 1, cuda::compute_capability(0)), ranks, kGpu);
    CHECK(held_memory(kGpu).now == held);
    REQUIRE(measured.size() >= 2);
    for (const Decisions::Entry& entry : measured) {
      CHECK(std::isfinite(std::stod(entry.value)));
      CHECK(std::stod(entry.value) > 0);
    }
    CHECK(measured.back().name == kFloat8StepDecision);
  }
}

TEST_CASE("auto on a GPU: each shape is measured, the layers follow, and a restart does not measure again") {
  if (!has_float8_gpu()) return skip("there is no GPU with FP8");
  const TinyTraining tiny;
  const Experiment first = settled(tiny, DecisionSource::checkpoint);
  constexpr const char* kAuto = "quantize.linear.float8.auto ";
  auto is_measured = [](const Decisions::Entry& d) {
    return d.name.starts_with(kAuto) && d.reason.starts_with("a step's operations: ");
  };
  CHECK(std::ranges::count_if(first.decisions.entries, is_measured) ==
        4);  // wqkv, wo, w13, w2 of equal blocks
  CHECK(first.decisions.find(kFloat8StepDecision) != nullptr);
  for (const fp8::GemmDecision& d : first.shape.float8_policy.decisions) {
    if (d.gemm.role == fp8::GemmRole::output) continue;
    INFO(d.gemm.name);
    const Decisions::Entry* entry =
        first.decisions.find(decision_name({.tokens = 64,
                                            .rows = d.gemm.rows(),
                                            .columns = d.gemm.columns,
                                            .recipe = fp8::RecipeName::tensorwise}));
    REQUIRE(entry != nullptr);
    CHECK(d.recipe.has_value() == (std::stod(entry->value) >= 1));
    CHECK(d.reason == fmt::format("measured {:.2f}x", std::stod(entry->value)));
  }

  // A checkpoint whose ratios no measurement would give: a tenth, and for wo ten times.
  Decisions saved = first.decisions;
  for (Decisions::Entry& entry : saved.entries) {
    if (is_measured(entry)) entry.value = entry.name.find(" 32 x 32 ") != std::string::npos ? "1e9" : "1e-9";
  }
  const std::string folder = tiny / "run/checkpoint/step-4";
  fs::create_directories(folder);
  std::ofstream(folder + "/decisions.json") << to_json(saved);
  const Experiment again = settled(tiny, DecisionSource::checkpoint);
  CHECK((again.decisions == saved));
  CHECK(again.shape.float8_policy.fp8_products() == 2 * 3);
  CHECK(again.shape.float8_policy.find("layers.1.attention.wo")->recipe.has_value());
  const Experiment afresh = settled(tiny, DecisionSource::afresh);
  CHECK(std::ranges::count_if(afresh.decisions.entries, is_measured) == 4);
  for (const Decisions::Entry& entry : afresh.decisions.entries)
    CHECK((entry.value != "1e9" && entry.value != "1e-9"));
}
