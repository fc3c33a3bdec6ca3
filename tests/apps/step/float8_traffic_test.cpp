#include "tests/support/catch.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/overrides.h"
#include "tests/support/traffic_formula.h"

// Every byte and every collective of a step in FP8 is in the formula, and in the plan. A gather that is asked
// for and does not happen, or an exchange per weight or micro-batch, shows here.

using namespace ottava;
using namespace ottava::test;

namespace {

struct Traffic {
  const char* name;
  Float8Config config;
  Layout layout;
  void (*change)(TrainingShape&) = [](TrainingShape&) {};
};

LayoutCurve run(const Traffic& t) {
  TrainingShape whole = float8_step();
  t.change(whole);
  whole = in_float8(whole, t.config, t.layout.tp);
  LayoutCurve curve = train_on(whole, t.layout, 1);
  require_traffic_of_formula(whole, t.layout, curve);
  return curve;
}

int64_t sent(const LayoutCurve& curve, Collective collective, std::string_view axis) {
  return curve.measured[0].sum(collective, axis).sent_bytes;
}

}  // namespace

TEST_CASE("what FP8 ranks send is what the formula says, byte for byte, with and without gathers of codes") {
  for (const std::string& recipe : all_recipes()) {
    for (const bool gathers : {false, true}) {
      const Float8Config config{.recipe_name = recipe,
                                .amax_history_length = 4,
                                .enable_fsdp_float8_all_gather = gathers,
                                .enable_tp_float8_all_gather = gathers};
      for (const Traffic& t :
           {Traffic{"FSDP 2 x TP 2, accumulation", config, {.dp_shard = 2, .tp = 2, .micro_batches = 2}},
            Traffic{"FSDP 4, recomputed", config, {.dp_shard = 4}, [](TrainingShape& s) {
                      s.model_options.recompute = {Recompute::elementwise, Recompute::block};
                    }}}) {
        DYNAMIC_SECTION(recipe << (gathers ? " in bytes, " : ", ") << t.name) { run(t); }
      }
    }
  }
}

TEST_CASE("the formula knows every way to let go of weights, replicas and vocabularies in FP8") {
  const Float8Config both{.enable_fsdp_float8_all_gather = true, .enable_tp_float8_all_gather = true};
  Float8Config rows = both, output = both, split = both, delayed = both;
  rows.recipe_name = "rowwise";
  output.policy = {{"output", "tensorwise"}};
  output.pad_vocabulary = true;
  split.filter_fqns = {"wk"};
  delayed.recipe_name = "delayed";
  const auto never = [](TrainingShape& s) { s.parameters.reshard = FsdpOptions::Reshard::never; };
  for (const Traffic& t : std::vector<Traffic>{
           {"never resharded", both, {.dp_shard = 2, .micro_batches = 4}, never},
           {"never resharded, rowwise", rows, {.dp_shard = 2, .micro_batches = 4}, never},
           {"always resharded",
            rows,
            {.dp_shard = 2, .micro_batches = 2},
            [](TrainingShape& s) { s.parameters.reshard = FsdpOptions::Reshard::always; }},
           {"recomputed on FSDP 2 x TP 2",
            rows,
            {.dp_shard = 2, .tp = 2},
            [](TrainingShape& s) { s.model_options.recompute.assign(2, Recompute::block); }},
           {"HSDP 2x2, delayed", delayed, {.dp_replicate = 2, .dp_shard = 2, .micro_batches = 2}},
           {"DDP 2", both, {.dp_replicate = 2}},
           {"padded vocabulary",
            output,
            {.dp_shard = 2, .tp = 2},
            [](TrainingShape& s) {
              s.model.vocab_size = 296;
              s.groups.clear();
            }},
           {"split fusion", split, {.dp_shard = 2, .tp = 2, .micro_batches = 2}}}) {
    DYNAMIC_SECTION(t.name) { run(t); }
  }
}

TEST_CASE(
    "gradients that travel in FP8 are all-to-alls of a byte and a 32nd per element, in the formula too") {
  const auto each = [](TrainingShape& s) {
    s = wide_float8_step();
    s.parameters.reduce_every_micro_batch = true;
  };
  const auto once = [](TrainingShape& s) {
    s = wide_float8_step();
    s.parameters.reduce_every_micro_batch = false;
  };
  for (std::string recipe : {"tensorwise", "blockwise"}) {
    for (const Traffic& t : std::vector<Traffic>{
             {"FSDP 4", {}, {.dp_shard = 4}, each},
             {"FSDP 2 x TP 2, every micro-batch", {}, {.dp_shard = 2, .tp = 2, .micro_batches = 2}, each},
             {"FSDP 2 x TP 2, once", {}, {.dp_shard = 2, .tp = 2, .micro_batches = 2}, once},
             {"HSDP 2x2", {}, {.dp_replicate = 2, .dp_shard = 2}, each},
             {"DDP 2", {}, {.dp_replicate = 2}, each}}) {
      Traffic in_bytes = t;
      in_bytes.config = {.recipe_name = recipe,
                         .enable_fsdp_float8_all_gather = true,
                         .enable_float8_gradient_all_to_all = true};
      DYNAMIC_SECTION(recipe << ", " << t.name) { run(in_bytes); }
    }
  }
  const Layout layout{.dp_shard = 2};
  const LayoutCurve off = run({"off", {}, layout, each}),
                    on = run({"on", {.enable_float8_gradient_all_to_all = true}, layout, each});
  const int64_t elements =
      2 * (256 * 128 + 1536 * 128 + 128 * 768);  // of two blocks without wo; half of them are sent
  CHECK(sent(on, Collective::all_to_all, "dp_shard") == (elements + elements / 32) / 2);
  CHECK(on.measured[0].sum(Collective::all_to_all, "dp_shard").calls == 2 * 3 * 2);  // bytes and scales
  CHECK(sent(off, Collective::reduce_scatter, "dp_shard") -
            sent(on, Collective::reduce_scatter, "dp_shard") ==
        4 * elements / 2);
  CHECK(sent(off, Collective::all_to_all, "dp_shard") == 0);
  CHECK(sent(off, Collective::all_gather, "dp_shard") == sent(on, Collective::all_gather, "dp_shard"));
}

TEST_CASE("bytes are half of bf16 on the wire") {
  const Layout layout{.dp_shard = 2};
  // Large enough not to travel packed, so that only the norms are left beside them.
  const auto wide = [](TrainingShape& s) { s.model.tied_embeddings = false; };
  const LayoutCurve off = run({"off", {}, layout, wide}),
                    on = run({"on", {.enable_fsdp_float8_all_gather = true}, layout, wide});
  const int64_t linear = 2 * (128 * 64 + 64 * 64 + 384 * 64 + 64 * 192);  // elements of two blocks
  // Forward and backward, half of them on this rank; a byte each instead of two.
  CHECK(sent(off, Collective::all_gather, "dp_shard") - sent(on, Collective::all_gather, "dp_shard") ==
        2 * linear / 2);
  CHECK(sent(off, Collective::reduce_scatter, "dp_shard") ==
        sent(on, Collective::reduce_scatter, "dp_shard"));
  CHECK(on.measured[0].sum(Collective::all_reduce, "replica").calls == 2);  // amaxes and norm
}

// The formula reads the flag where the step does, so what the flag saves is counted by hand here, starting
// from the configuration's key.
TEST_CASE(
    "sequence-parallel activations travel in half of bf16's bytes where the configuration asks for it") {
  constexpr int64_t kTokens = 32, kDim = 64, kLayers = 2;
  auto traffic = [](const char* recipe, const char* gathers) {
    const Config config = load_config(
        "", model_of({.dim = kDim, .layers = kLayers, .heads = 4, .kv_heads = 2, .ffn = 192}) +
                words("--model.vocab_size 320 --training.seq_len 32 --training.local_batch_size 1 "
                      "--parallelism.tensor_parallel_degree 2 --model.converters [quantize.linear.float8] "
                      "--activation_checkpoint.mode none") +
                Overrides{"--quantize.linear.float8.recipe_name", recipe,
                          "--quantize.linear.float8.enable_tp_float8_all_gather", gathers});
    return train_on(resolve_experiment(config, nullptr, 2).shape, {.tp = 2}, 1);
  };
  auto calls = [](const LayoutCurve& curve, Collective collective) {
    return curve.measured[0].sum(collective, "tp").calls;
  };
  // Each rank sends its half of the tokens. In each block forward gathers the inputs of wqkv and w13,
  // backward the gradients of what wo and w2 gave.
  constexpr int64_t kHalf = kTokens / 2, kInputs = 2 * kLayers, kGradients = 2 * kLayers;
  {
    const LayoutCurve off = traffic("tensorwise", "false"), on = traffic("tensorwise", "true");
    CHECK(sent(off, Collective::all_gather, "tp") - sent(on, Collective::all_gather, "tp") ==
          (kInputs + kGradients) * kHalf * kDim);
    CHECK(calls(on, Collective::all_gather) == calls(off, Collective::all_gather));
    CHECK(calls(on, Collective::all_reduce) - calls(off, Collective::all_reduce) ==
          kInputs + kGradients);  // an amax each
    CHECK(sent(on, Collective::reduce_scatter, "tp") == sent(off, Collective::reduce_scatter, "tp"));
  }
  {
    // A gradient is scaled by rows for one product and by columns for the other: it stays in bf16. A scale of
    // f32 per token.
    const LayoutCurve off = traffic("rowwise", "false"), on = traffic("rowwise", "true");
    CHECK(sent(off, Collective::all_gather, "tp") - sent(on, Collective::all_gather, "tp") ==
          kInputs * (kHalf * kDim - kHalf * 4));
    CHECK(calls(on, Collective::all_gather) - calls(off, Collective::all_gather) == kInputs);
    CHECK(calls(on, Collective::all_reduce) == calls(off, Collective::all_reduce));
    CHECK(sent(on, Collective::reduce_scatter, "tp") == sent(off, Collective::reduce_scatter, "tp"));
  }
}
