#include <algorithm>
#include <map>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"

// Memory by category, on every layout: what crosses from forward to backward is activations.

using namespace ottava;
using namespace ottava::test;

namespace {

// Llama 3 405B with every dimension cut down, full recomputation as its configuration has it.
TrainingShape small_405b(Recompute recompute) {
  TrainingShape shape = tiny_shape(
      {.dim = 256, .layers = 6, .heads = 8, .kv_heads = 4, .head_dim = 32, .ffn_dim = 832, .vocab_size = 512},
      1, 128);
  shape.parameters.compute = DType::bf16;
  shape.model_options.loss_chunk_rows = 64;
  shape.model_options.recompute.assign(6, recompute);
  return shape;
}

std::map<MemoryCategory, int64_t> by_category(const MemoryPlan& plan) {
  std::map<MemoryCategory, int64_t> out;
  for (const MemoryPlan::Row& row : plan.by_category()) out[row.category] = row.bytes;
  return out;
}

MemoryPlan plan_of(const TrainingShape& shape, const Layout& layout) {
  return record_first_rank(shape, {DeviceType::cpu, 0}, layout.mesh()).memory;
}

/// What is alive, by category, when the last block's forward pass has ended and the head begins.
struct Turn {
  std::map<MemoryCategory, int64_t> bytes;
  std::string scratch;  ///< names
};
Turn at_turn(const MemoryPlan& plan) {
  const std::vector<PlannedAllocation>& all = plan.phases.at(0).allocations;
  const auto turn = std::find_if(all.begin(), all.end(), [](const auto& a) { return a.name == "losses"; });
  REQUIRE(turn != all.end());
  Turn out;
  for (const PlannedAllocation& a : all) {
    if (a.begin >= turn->begin || a.end <= turn->begin) continue;
    out.bytes[a.category] += a.bytes;
    if (a.category == MemoryCategory::scratch) out.scratch += a.name + " ";
  }
  return out;
}

/// The tensor of this name that was made last before time `before`.
const PlannedAllocation& newest(const std::vector<PlannedAllocation>& all, std::string_view name,
                                int64_t before) {
  const PlannedAllocation* out = nullptr;
  for (const PlannedAllocation& a : all) {
    if (a.name == name && a.begin < before && (!out || a.begin > out->begin)) out = &a;
  }
  INFO(name);
  REQUIRE(out);
  return *out;
}

}  // namespace

TEST_CASE("activations of a small 405B are those counted by hand, with and without tensor parallel") {
  constexpr int64_t kLayers = 6, kTokens = 128, kDim = 256, kFfn = 832, kHeads = 8, kKeyValueHeads = 4,
                    kHeadDim = 32, kBf16 = 2, kF32 = 4;
  for (const int64_t tp : {1, 2, 4}) {
    INFO("tensor parallel " << tp);
    const int64_t mine = kTokens / tp;  // tokens of the residual stream
    // The head: the last block's output, the gathered norm of it, and what the norm divided by.
    const int64_t head = mine * kDim * kBf16 + kTokens * kDim * kBf16 + mine * kF32,
                  residual = mine * kDim * kBf16;
    // Of a block besides its input: h, two norms' divisors, qkv, attention and its sums, both halves of
    // the feed-forward layer.
    const int64_t kept = residual + 2 * mine * kF32 +
                         kTokens * (kHeads + 2 * kKeyValueHeads) / tp * kHeadDim * kBf16 +
                         kTokens * kHeads / tp * kHeadDim * kBf16 + kTokens * kHeads / tp * kF32 +
                         kTokens * 2 * kFfn / tp * kBf16;
    // And where nothing is recomputed: outputs of both norms, of this rank's tokens, and of the activation.
    const int64_t inputs = 2 * residual + kTokens * kFfn / tp * kBf16;
    const int64_t attention = kTokens * kHeads / tp * (kHeadDim * kBf16 + kF32);
    const std::map<Recompute, int64_t> expected = {
        {Recompute::block, kLayers * residual + head},
        {Recompute::all_but_attention, kLayers * (residual + attention) + head},
        {Recompute::elementwise, kLayers * (residual + kept) + head},
        {Recompute::nothing, kLayers * (residual + kept + inputs) + head}};
    for (const auto& [recompute, bytes] : expected) {
      INFO("recomputation " << static_cast<int>(recompute));
      const MemoryPlan plan = plan_of(small_405b(recompute), {.tp = static_cast<int>(tp)});
      const Turn turn = at_turn(plan);
      CHECK(turn.bytes.at(MemoryCategory::activations) == bytes);
      CHECK(turn.bytes.count(MemoryCategory::scratch) == 0);
      // The fullest moment is in backward, at its last block or before: the stream's states are all there.
      CHECK(by_category(plan)[MemoryCategory::activations] >= kLayers * residual);
    }
  }
}

TEST_CASE("nothing that crosses from forward to backward is called scratch, in any precision or layout") {
  std::vector<std::string> recipes = all_recipes();
  recipes.emplace_back();
  for (const std::string& recipe : recipes) {
    for (const bool in_codes : {false, true}) {
      for (const Layout& layout :
           {Layout{}, Layout{.dp_shard = 2}, Layout{.tp = 2}, Layout{.dp_shard = 2, .tp = 2}}) {
        for (Recompute recompute : {Recompute::nothing, Recompute::elementwise, Recompute::block}) {
          INFO(recipe << (in_codes ? " in codes" : "") << ", shards " << layout.dp_shard << ", tp "
                      << layout.tp << ", recomputation " << static_cast<int>(recompute));
          TrainingShape shape = float8_step();
          shape.model_options.recompute.assign(2, recompute);
          if (!recipe.empty()) {
            shape = in_float8(shape,
                              {.recipe_name = recipe,
                               .amax_history_length = 4,
                               .enable_fsdp_float8_all_gather = in_codes,
                               .enable_tp_float8_all_gather = in_codes},
                              layout.tp);
          }
          const Turn turn = at_turn(plan_of(shape_on(shape, layout), layout));
          CHECK(turn.scratch.empty());
        }
      }
    }
  }
}

TEST_CASE("what a layer's backward pass has read is given back before the next gradient is made") {
  std::vector<std::string> recipes = all_recipes();
  recipes.emplace_back();
  for (const std::string& recipe : recipes) {
    for (Recompute recompute : {Recompute::nothing, Recompute::elementwise, Recompute::block}) {
      INFO(recipe << ", recomputation " << static_cast<int>(recompute));
      TrainingShape shape = float8_step();
      shape.model_options.recompute.assign(2, recompute);
      if (!recipe.empty()) shape = in_float8(shape, {.recipe_name = recipe, .amax_history_length = 4}, 1);
      const MemoryPlan plan = plan_of(shape, {});
      const std::vector<PlannedAllocation>& all = plan.phases.at(0).allocations;
      // Of the last block, which comes first.
      const auto given_back = [&](std::string_view name, std::string_view gradient) {
        const auto dx = std::ranges::find(all, gradient, &PlannedAllocation::name);
        REQUIRE(dx != all.end());
        INFO(name << " and " << gradient);
        CHECK(newest(all, name, dx->begin).end <= dx->begin);
      };
      given_back("feed_forward.swiglu", "feed_forward.w13.dx");
      given_back("attention.wqkv", "attention.wqkv.dx");
      given_back("attention.core", "attention.wqkv.dx");
    }
  }
}
