#include "fp8/policy.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/message_of.h"

using namespace ottava;
using namespace ottava::fp8;
using Catch::Matchers::Contains;
using ottava::test::message_of;

namespace {

struct Model {
  const char* name;
  int64_t dim, layers, heads, kv_heads, head_dim, ffn, vocab;
};
const Model kDebug{"debugmodel", 256, 6, 16, 16, 16, 768, 2256},
    k8B{"8B", 4096, 32, 32, 8, 128, 14336, 128256}, k70B{"70B", 8192, 80, 64, 8, 128, 28672, 128256};

/// The layers of a Llama model: column-parallel wqkv, w13 and output, row-parallel wo and w2.
PolicyInputs llama(const Model& m, int64_t tp, int64_t tokens = 8192) {
  PolicyInputs in{.layers = m.layers, .tensor_parallel = tp, .local_tokens = tokens};
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  for (int64_t l = 0; l < m.layers; ++l) {
    auto named = [&](const char* name) { return fmt::format("layers.{}.{}", l, name); };
    in.gemms.push_back({named("attention.wqkv"),
                        {{"wq", q, q / tp}, {"wk", kv, kv / tp}, {"wv", kv, kv / tp}},
                        m.dim,
                        m.dim,
                        GemmRole::linear,
                        l});
    in.gemms.push_back({named("attention.wo"), {{"wo", m.dim, m.dim}}, q, q / tp, GemmRole::linear, l});
    in.gemms.push_back({named("feed_forward.w13"),
                        {{"w1", m.ffn, m.ffn / tp}, {"w3", m.ffn, m.ffn / tp}},
                        m.dim,
                        m.dim,
                        GemmRole::linear,
                        l});
    in.gemms.push_back(
        {named("feed_forward.w2"), {{"w2", m.dim, m.dim}}, m.ffn, m.ffn / tp, GemmRole::linear, l});
  }
  in.gemms.push_back({"output", {{"output", m.vocab, m.vocab / tp}}, m.dim, m.dim, GemmRole::output});
  return in;
}

struct Outcome {
  std::string runs_in, reason;
  bool operator==(const Outcome&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Outcome& o) { return out << o.runs_in << ": " << o.reason; }

Outcome outcome(const Policy& policy, std::string_view name) {
  const GemmDecision* d = policy.find(name);
  REQUIRE(d != nullptr);
  return {d->recipe ? std::string(name_of(d->recipe->name)) : "bf16", d->reason};
}

}  // namespace

TEST_CASE("policy: tables of debugmodel, 8B and 70B at tensor parallel 1, 2, 4, 8 are the golden ones") {
  std::string text;
  for (const Model& model : {kDebug, k8B, k70B}) {
    for (int64_t tp : {1, 2, 4, 8}) {
      text += fmt::format("# {}, tp {}, tensorwise\n{}\n", model.name, tp,
                          policy_table(decide_policy({}, llama(model, tp))));
    }
    Float8Config sized{.recipe_name = "rowwise", .filter_fqns = {"output", "auto_filter_small_kn"}};
    text += fmt::format("# {}, tp 1, rowwise, auto_filter_small_kn\n{}\n", model.name,
                        policy_table(decide_policy(sized, llama(model, 1))));
    Float8Config edges{.recipe_name = "tensorwise_with_gw_hp",
                       .policy = {{"layers.*.attention.wk", "bf16"}},
                       .high_precision_first_blocks = 1,
                       .high_precision_last_blocks = 2};
    text += fmt::format("# {}, tp 1, weight gradients, wk and outer blocks in bf16\n{}\n", model.name,
                        policy_table(decide_policy(edges, llama(model, 1))));
  }
  const std::string path = OTTAVA_SOURCE_DIR "/tests/golden/fp8/policy_tables.txt";
  if (test::writes_golden()) std::ofstream(path) << text;
  std::ifstream file(path);
  std::stringstream golden;
  golden << file.rdbuf();
  CHECK(text == golden.str());
}

TEST_CASE("policy: by default all but the output layer, three products each") {
  const Policy policy = decide_policy({}, llama(k8B, 8));
  CHECK(outcome(policy, "layers.31.feed_forward.w2") == Outcome{"tensorwise", "recipe_name"});
  CHECK(outcome(policy, "output") == Outcome{"bf16", "the output layer stays in high precision"});
  CHECK(policy.fp8_products() == 32 * 4 * 3);
  CHECK(policy.find("layers.32.attention.wo") == nullptr);
  CHECK(decide_policy({.recipe_name = "rowwise_with_gw_hp"}, llama(k8B, 8)).fp8_products() == 32 * 4 * 2);
  // There is no size rule that was not asked for.
  CHECK(decide_policy({}, llama(kDebug, 1)).fp8_products() == 6 * 4 * 3);
}

TEST_CASE("policy: later sources override earlier ones, in the documented order") {
  Float8Config config{
      .policy = {{"layers.0.*", "rowwise"}, {"layers.0.attention.wo", "bf16"}, {"layers.2.*", "bf16"}},
      .high_precision_first_blocks = 2,
      .high_precision_last_blocks = 1};
  config.filter_fqns = {"w2"};
  const Policy policy = decide_policy(config, llama(kDebug, 1));
  CHECK(outcome(policy, "layers.1.attention.wo") ==
        Outcome{"bf16", "the first 2 blocks stay in high precision"});
  CHECK(outcome(policy, "layers.5.attention.wo") ==
        Outcome{"bf16", "the last block stays in high precision"});
  CHECK(outcome(policy, "layers.3.feed_forward.w2") == Outcome{"bf16", "filter_fqns \"w2\""});
  CHECK(outcome(policy, "layers.0.feed_forward.w2") == Outcome{"rowwise", "policy \"layers.0.*\""});
  CHECK(outcome(policy, "layers.0.attention.wo") == Outcome{"bf16", "policy \"layers.0.attention.wo\""});
  CHECK(outcome(policy, "layers.2.attention.wo") == Outcome{"bf16", "policy \"layers.2.*\""});
  CHECK(outcome(policy, "layers.3.attention.wo") == Outcome{"tensorwise", "recipe_name"});
}

TEST_CASE("policy: a filter that covers some parts of a fused matrix splits it") {
  const Policy split = decide_policy({.filter_fqns = {"wk", "wv"}}, llama(kDebug, 1));
  CHECK(split.find("layers.0.attention.wqkv") == nullptr);
  CHECK(outcome(split, "layers.0.attention.wq") == Outcome{"tensorwise", "recipe_name; split from wqkv"});
  CHECK(outcome(split, "layers.0.attention.wk") == Outcome{"bf16", "filter_fqns \"wk\"; split from wqkv"});
  CHECK(split.find("layers.0.attention.wq")->is_split);
  CHECK(split.find("layers.0.attention.wq")->gemm.rows() == 256);
  // "wq" is a part of "wqkv" too, but means wq; "w1" means w1 and not w13.
  CHECK(outcome(decide_policy({.filter_fqns = {"wq"}}, llama(kDebug, 1)), "layers.0.attention.wv").runs_in ==
        "tensorwise");
  CHECK(
      outcome(decide_policy({.filter_fqns = {"w1"}}, llama(kDebug, 1)), "layers.0.feed_forward.w3").runs_in ==
      "tensorwise");
  for (const char* whole : {"wqkv", "attention"}) {
    const Policy policy = decide_policy({.filter_fqns = {whole}}, llama(kDebug, 1));
    CHECK(outcome(policy, "layers.4.attention.wqkv") ==
          Outcome{"bf16", fmt::format("filter_fqns \"{}\"", whole)});
    CHECK_FALSE(policy.find("layers.4.attention.wqkv")->is_split);
  }
  const Policy glob = decide_policy({.policy = {{"layers.*.w3", "bf16"}}}, llama(kDebug, 1));
  CHECK(outcome(glob, "layers.5.feed_forward.w1") == Outcome{"tensorwise", "recipe_name; split from w13"});
  CHECK(outcome(glob, "layers.5.feed_forward.w3") ==
        Outcome{"bf16", "policy \"layers.*.w3\"; split from w13"});
  // Parts that run alike, if for different reasons, stay together.
  const Policy alike =
      decide_policy({.filter_fqns = {"wk"}, .high_precision_first_blocks = 1}, llama(kDebug, 1));
  CHECK(outcome(alike, "layers.0.attention.wqkv") ==
        Outcome{"bf16", "the first block stays in high precision; filter_fqns \"wk\""});
  CHECK(alike.find("layers.1.attention.wqkv") == nullptr);
  // A split part has its own shape to fit.
  PolicyInputs narrow = llama(kDebug, 1);
  narrow.gemms[0].parts[1] = {"wk", 24, 24};
  const Policy policy = decide_policy({.filter_fqns = {"0.attention.wv"}}, narrow);
  CHECK(outcome(policy, "layers.0.attention.wk") ==
        Outcome{"bf16", "24 rows is not a multiple of 16 (24/16 = 1.5); split from wqkv"});
}

TEST_CASE("policy: a local shape that does not fit puts the recipe aside, with the arithmetic") {
  struct Row {
    int64_t rows, columns, tp;
    bool rows_are_cut;
    const char* reason;
  };
  auto decide = [](const Row& row, Float8Config config = {}, int64_t tokens = 64) {
    const int64_t rows = row.rows_are_cut ? row.rows / row.tp : row.rows;
    const int64_t columns = row.rows_are_cut ? row.columns : row.columns / row.tp;
    PolicyInputs in{.layers = 1, .tensor_parallel = row.tp, .local_tokens = tokens};
    in.gemms = {{"layers.0.w", {{"w", row.rows, rows}}, row.columns, columns, GemmRole::linear, 0}};
    return outcome(decide_policy(config, in), "layers.0.w");
  };
  for (Row row : std::initializer_list<Row>{
           {2256, 256, 4, true, "2256 rows / tp 4 = 564 is not a multiple of 16 (2256/16 = 141)"},
           {2256, 256, 16, true, "2256 rows / tp 16 = 141 is not a multiple of 16 (2256/16 = 141)"},
           {4096, 11008, 32, false, "11008 columns / tp 32 = 344 is not a multiple of 16 (11008/16 = 688)"},
           {50257, 768, 1, true, "50257 rows is not a multiple of 16 (50257/16 = 3141.06)"}}) {
    CHECK(decide(row) == Outcome{"bf16", row.reason});
  }
  for (Row row : std::initializer_list<Row>{{128256, 4096, 16, true, ""},
                                            {4096, 11008, 16, false, ""},
                                            {2560, 256, 8, true, ""},
                                            {1024, 4096, 8, true, ""},
                                            {2256, 256, 1, true, ""}}) {
    CHECK(decide(row) == Outcome{"tensorwise", "recipe_name"});
  }
  const Row even{256, 256, 1, true, ""};
  CHECK(decide(even, {}, 100) == Outcome{"bf16", "100 tokens is not a multiple of 16 (100/16 = 6.25)"});
  CHECK(decide(even, {.recipe_name = "mxfp8"}, 48) ==
        Outcome{"bf16", "48 tokens is not a multiple of 32 (48/32 = 1.5)"});
  CHECK(decide({1376, 4096, 2, true, ""}, {.recipe_name = "mxfp8"}) ==
        Outcome{"bf16", "1376 rows / tp 2 = 688 is not a multiple of 32 (1376/32 = 43)"});
  // KV heads that several ranks hold: local rows are more than their share.
  PolicyInputs shared{.layers = 1, .tensor_parallel = 4, .local_tokens = 64};
  shared.gemms = {{"layers.0.w", {{"wk", 48, 24}}, 64, 64, GemmRole::linear, 0}};
  CHECK(outcome(decide_policy({}, shared), "layers.0.w") ==
        Outcome{"bf16", "24 of 48 rows on a rank of tp 4 is not a multiple of 16 (24/16 = 1.5)"});
}

TEST_CASE(
    "policy: an explicit entry that cannot hold is refused with the arithmetic and the ways out; each way "
    "works") {
  const Float8Config wish{.policy = {{"output", "tensorwise"}}};
  CHECK_THROWS_WITH(decide_policy(wish, llama(kDebug, 4)),
                    "[fp8] policy \"output\": tensorwise asks for output in tensorwise, but 2256 rows / tp 4 "
                    "= 564 is not a multiple of "
                    "16 (2256/16 = 141); possible changes: a vocabulary of 2560, "
                    "quantize.linear.float8.pad_vocabulary: true, or recipe "
                    "bf16 for it");
  CHECK(outcome(decide_policy(wish, llama(kDebug, 1)), "output") ==
        Outcome{"tensorwise", "policy \"output\""});
  for (int64_t tp : {2, 4, 8}) {
    Model wider = kDebug;
    wider.vocab = 2560;
    CHECK(outcome(decide_policy(wish, llama(wider, tp)), "output") ==
          Outcome{"tensorwise", "policy \"output\""});
    Float8Config padded = wish;
    padded.pad_vocabulary = true;
    const Policy policy = decide_policy(padded, llama(kDebug, tp));
    const GemmDecision& d = *policy.find("output");
    CHECK(d.recipe.has_value());
    CHECK(d.padded_rows == (tp == 2 ? 2272 : tp == 4 ? 2304 : 2304));
    CHECK(d.gemm.local_rows() * tp == d.padded_rows);
    if (tp == 8) CHECK(d.reason == "policy \"output\"; 2256 rows padded to 2304 (+2.1%)");
    CHECK(outcome(decide_policy({.policy = {{"output", "bf16"}}}, llama(kDebug, tp)), "output") ==
          Outcome{"bf16", "policy \"output\""});
  }
  CHECK_THROWS_WITH(
      decide_policy({.policy = {{"layers.*.w2", "tensorwise"}}}, llama(kDebug, 32)),
      Contains("768 columns / tp 32 = 24 is not a multiple of 16 (768/16 = 48)") &&
          Contains("possible changes: a smaller parallelism.tensor_parallel_degree, or recipe bf16"));
  CHECK_THROWS_WITH(decide_policy({.policy = {{"layers.*.w2", "tensorwise"}}}, llama(kDebug, 1, 40)),
                    Contains("40 tokens is not a multiple of 16 (40/16 = 2.5)") &&
                        Contains("training.seq_len") && Contains("pipeline_parallel_microbatch_size"));
}

TEST_CASE("policy: a refusal names what can help: no smaller degree where the whole does not fit either") {
  const auto refused = [](Float8PolicyConfig entry, PolicyGemm gemm, int tp, int64_t tokens) {
    const PolicyInputs inputs{
        .gemms = {std::move(gemm)}, .layers = 1, .tensor_parallel = tp, .local_tokens = tokens};
    return message_of([&] { decide_policy({.policy = {std::move(entry)}}, inputs); });
  };
  const auto changes = [](const std::string& text) { return text.substr(text.find("possible changes: ")); };
  const std::string rest = ", or recipe bf16 for it",
                    rows =
                        "possible changes: dimensions of the model (section model) that make its rows a "
                        "multiple of 16" +
                        rest,
                    columns =
                        "possible changes: dimensions of the model (section model) that make its "
                        "columns a multiple of 16" +
                        rest,
                    degree = "possible changes: a smaller parallelism.tensor_parallel_degree" + rest;
  const Float8PolicyConfig linear{"*.w", "rowwise"}, output{"output", "rowwise"};
  const std::string w = "layers.0.w";
  CHECK(changes(refused(linear, {w, {{"w", 120, 120}}, 64, 64, GemmRole::linear, 0}, 1, 64)) == rows);
  CHECK(changes(refused(linear, {w, {{"w", 120, 120}}, 64, 64, GemmRole::linear, 0}, 1, 40)) == rows);
  CHECK(changes(refused(linear, {w, {{"w", 120, 60}}, 64, 64, GemmRole::linear, 0}, 2, 64)) == rows);
  CHECK(changes(refused(linear, {w, {{"w", 96, 24}}, 64, 64, GemmRole::linear, 0}, 4, 64)) == degree);
  CHECK(changes(refused(linear, {w, {{"w", 64, 32}}, 50, 50, GemmRole::linear, 0}, 2, 64)) == columns);
  CHECK(changes(refused(linear, {w, {{"w", 64, 64}}, 96, 24, GemmRole::linear, 0}, 4, 64)) == degree);
  CHECK(changes(refused(output, {"output", {{"output", 512, 512}}, 50, 50, GemmRole::output}, 1, 64)) ==
        columns);
}

TEST_CASE("policy: torchao's size rule on the fused shape, and what it would do unfused") {
  const Float8Config sized{.filter_fqns = {"auto_filter_small_kn"}};
  const Policy policy = decide_policy(sized, llama(k8B, 1));
  CHECK(outcome(policy, "layers.0.attention.wqkv") ==
        Outcome{"tensorwise", "recipe_name; torchao, not fused, would keep wk, wv in bf16"});
  CHECK(outcome(policy, "layers.0.attention.wo") == Outcome{"tensorwise", "recipe_name"});
  const Policy small = decide_policy(sized, llama(kDebug, 1));
  CHECK(outcome(small, "layers.0.attention.wo") ==
        Outcome{"bf16", "auto_filter_small_kn: K 256 <= 4096 and N 256 <= 1024"});

  struct Row {
    const char* recipe;
    int64_t n, k;
    const char* reason;  ///< empty: stays FP8
  };
  for (Row row : std::initializer_list<Row>{{"tensorwise", 1024, 4096, "K 4096 <= 4096 and N 1024 <= 1024"},
                                            {"tensorwise", 1040, 4096, ""},
                                            {"tensorwise", 1024, 4112, ""},
                                            {"delayed", 16, 16, "K 16 <= 4096 and N 16 <= 1024"},
                                            {"rowwise", 2048, 8192, "N 2048 <= 2048"},
                                            {"rowwise", 8192, 1024, "K 1024 <= 1024"},
                                            {"rowwise", 4096, 2048, "N 4096 <= 4096 and K 2048 <= 2048"},
                                            {"rowwise", 4112, 2048, ""},
                                            {"rowwise", 4096, 2064, ""}}) {
    INFO(row.recipe << " " << row.n << " " << row.k);
    PolicyInputs in{.layers = 1, .local_tokens = 64};
    in.gemms = {{"layers.0.w", {{"w", row.n, row.n}}, row.k, row.k, GemmRole::linear, 0}};
    Float8Config config = sized;
    config.recipe_name = row.recipe;
    Outcome expected{row.recipe, "recipe_name"};
    if (*row.reason) expected = {"bf16", "auto_filter_small_kn: " + std::string(row.reason)};
    CHECK(outcome(decide_policy(config, in), "layers.0.w") == expected);
    // What the policy list names is not filtered.
    config.policy = {{"layers.0.w", row.recipe}};
    CHECK(outcome(decide_policy(config, in), "layers.0.w").runs_in == row.recipe);
  }
  CHECK_THROWS_WITH(
      decide_policy({.recipe_name = "rowwise_with_gw_hp", .filter_fqns = {"auto_filter_small_kn"}},
                    llama(kDebug, 1)),
      "[fp8] auto_filter_small_kn has thresholds only for recipes tensorwise, tensorwise_with_gw_hp, delayed "
      "and rowwise, not for rowwise_with_gw_hp: remove it from quantize.linear.float8.filter_fqns");
}

TEST_CASE("policy: auto keeps FP8 where it was measured to be faster") {
  const Float8Config config{.automatic = true};
  PolicyInputs in = llama(kDebug, 1);
  CHECK_THROWS_WITH(decide_policy(config, in),
                    Contains("quantize.linear.float8.auto compares the speed of FP8 and bf16"));
  in.measured_speedup = [](const PolicyGemm& gemm, const Recipe&) {
    return gemm.rows() > 1000 ? 1.316 : 0.91;
  };
  const Policy policy = decide_policy(config, in);
  CHECK(outcome(policy, "layers.3.attention.wo") == Outcome{"bf16", "measured 0.91x"});
  CHECK(outcome(policy, "layers.3.feed_forward.w13") == Outcome{"tensorwise", "measured 1.32x"});
  in.measured_speedup = [](const PolicyGemm&, const Recipe&) { return std::nullopt; };
  CHECK(outcome(decide_policy(config, in), "layers.3.attention.wo") ==
        Outcome{"tensorwise", "auto: not measured yet"});
  // Where nothing is multiplied in FP8 a measurement says nothing, but another device's does.
  in.hardware.emplace();
  in.measured_speedup = [](const PolicyGemm& gemm, const Recipe&) {
    return gemm.rows() > 1000 ? 1.316 : 0.91;
  };
  const Float8Config emulated{.automatic = true, .emulate = true};
  CHECK_THROWS_WITH(decide_policy(emulated, in), Contains("on a device that emulates"));
  in.is_measured_elsewhere = true;
  const Policy elsewhere = decide_policy(emulated, in);
  CHECK(outcome(elsewhere, "layers.3.attention.wo") == Outcome{"bf16", "measured 0.91x"});
  CHECK(outcome(elsewhere, "layers.3.feed_forward.w13") == Outcome{"tensorwise", "measured 1.32x"});
  CHECK(elsewhere.find("layers.3.feed_forward.w13")->is_emulated);
}

TEST_CASE("policy: a recipe that the hardware lacks is refused with what it has, or emulated") {
  PolicyInputs in = llama(kDebug, 1);
  in.hardware = recipes_of_compute_capability(90);
  CHECK_THROWS_WITH(decide_policy({.recipe_name = "mxfp8"}, in),
                    "[fp8] this GPU does not multiply recipe mxfp8 (layers.0.attention.wqkv): it has "
                    "tensorwise, tensorwise_with_gw_hp, delayed, rowwise, rowwise_with_gw_hp, blockwise; set "
                    "quantize.linear.float8.emulate to emulate it in bf16 arithmetic");
  CHECK_THROWS_AS(decide_policy({.recipe_name = "mxfp8"}, in), DeviceError);
  const Policy emulated = decide_policy({.recipe_name = "mxfp8", .emulate = true}, in);
  CHECK(outcome(emulated, "layers.0.attention.wo") == Outcome{"mxfp8", "recipe_name; emulated"});
  CHECK(emulated.find("layers.0.attention.wo")->is_emulated);
  CHECK_FALSE(decide_policy({.emulate = true}, in).find("layers.0.attention.wo")->is_emulated);
  in.hardware.emplace();
  CHECK_THROWS_WITH(decide_policy({}, in), Contains("it has none"));
}

TEST_CASE("policy: entries that match nothing are named, contradictions refused") {
  CHECK_THROWS_WITH(
      decide_policy({.filter_fqns = {"output", "router.gate"}, .policy = {{"layers.*.wz", "bf16"}}},
                    llama(kDebug, 1)),
      "[fp8] in quantize.linear.float8, filter_fqns \"router.gate\" and policy \"layers.*.wz\" matches no "
      "matrix product: "
      "this model has layers.*.attention.wqkv (wq, wk, wv), layers.*.attention.wo, layers.*.feed_forward.w13 "
      "(w1, w3), "
      "layers.*.feed_forward.w2, output");
  CHECK_THROWS_WITH(
      decide_policy({.policy = {{"layers.*", "bf16"}, {"layers.*", "rowwise"}}}, llama(kDebug, 1)),
      "[fp8] quantize.linear.float8.policy has both bf16 and rowwise for \"layers.*\": keep one of them");
  const Float8Config overruled{
      .policy = {{"layers.0.attention.wqkv", "rowwise"}, {"layers.*", "bf16"}, {"*.w2", "delayed"}}};
  CHECK_THROWS_WITH(decide_policy(overruled, llama(kDebug, 1)),
                    "[fp8] quantize.linear.float8.policy asks for rowwise in \"layers.0.attention.wqkv\", "
                    "but later entries override all of its matches (\"layers.*\": bf16): the last match "
                    "applies, so put more general patterns first");
  // One that decides something, or says what a later one says, may stay.
  for (const Float8Config& fine : {Float8Config{.policy = {{"*.wqkv", "rowwise"}, {"layers.0.*", "bf16"}}},
                                   Float8Config{.policy = {{"*.wqkv", "rowwise"}, {"*.wq", "bf16"}}},
                                   Float8Config{.policy = {{"layers.0.*", "bf16"}, {"layers.*", "bf16"}}}}) {
    CHECK_NOTHROW(decide_policy(fine, llama(kDebug, 1)));
  }
  CHECK_THROWS_AS(decide_policy({.recipe_name = "fp4"}, llama(kDebug, 1)), ConfigError);
}

TEST_CASE("policy: an entry may choose layers by a set of numbers") {
  PolicyInputs in{.layers = 3, .local_tokens = 64};
  for (int64_t layer = 0; layer < 3; ++layer) {
    const std::string name = "layers." + std::to_string(layer) + ".feed_forward.w2";
    in.gemms.push_back({name, {{"w2", 64, 64}}, 256, 256, GemmRole::linear, layer});
  }
  const Policy policy =
      decide_policy({.recipe_name = "rowwise", .policy = {{"layers.[02].*.w?", "bf16"}}}, in);
  CHECK(outcome(policy, "layers.0.feed_forward.w2").runs_in == "bf16");
  CHECK(outcome(policy, "layers.1.feed_forward.w2").runs_in == "rowwise");
  CHECK(outcome(policy, "layers.2.feed_forward.w2").runs_in == "bf16");
}
