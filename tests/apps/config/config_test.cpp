#include "apps/config/config.h"

#include <fmt/core.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "apps/commands/config_command.h"
#include "core/config/section.h"
#include "tests/support/catch.h"
#include "tests/support/config_of_text.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using ottava::test::config_of_text;
using ottava::test::message_of;

namespace {

Config parse(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return config_of_text(yaml, "f.yaml", overrides);
}
std::string error(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return message_of([&] { parse(yaml, overrides); });
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("defaults print and reload as themselves", "[config]") {
  Config c = load_config("");
  CHECK((c == Config{}));
  for (bool comments : {false, true}) {
    Config again = parse(print_config(c, comments));
    CHECK((again == c));
    CHECK(again.provenance.notes.empty());
  }
}

TEST_CASE("command line over file over default, and each setting knows where it came from", "[config]") {
  TemporaryFolder folder;
  const std::string file = folder.write("a.toml", "[training]\nsteps = 5\nseq_len = 64\n");
  Config c = load_config(file, {"--training.steps", "7", "--quantize.linear.float8.recipe_name", "rowwise"});
  CHECK(c.training.steps == 7);
  CHECK(c.training.seq_len == 64);
  CHECK(c.training.local_batch_size == 8);
  CHECK(c.float8.recipe_name == "rowwise");
  CHECK(config::to_string(c.provenance.origins.at("training.steps")) == "command line");
  CHECK(config::to_string(c.provenance.origins.at("training.seq_len")) == file + ":3:11");
  CHECK(c.provenance.origins.count("training.local_batch_size") == 0);
  CHECK(c.provenance.file == file);
  CHECK(has(message_of([&] {
              load_config(file, {"--training.stpes", "7"});
            }),
            "1 problem in " + file + ":\n  command line: unknown option"));
  CHECK(has(message_of([] {
              load_config("", {"--training.stpes", "7"});
            }),
            "1 problem in the command line:"));
}

TEST_CASE("impossible combinations come with the arithmetic", "[config]") {
  CHECK(error("training: {local_batch_size: 8, global_batch_size: 20}") ==
        "[config] 1 problem in f.yaml:\n  f.yaml:1:52: training.global_batch_size: 20 is not a multiple of "
        "local_batch_size 8 "
        "(remainder 4)");
  CHECK(has(error("training: {global_batch_size: 0}"),
            "expected -1 or an integer >= 1 and <= 1073741824, got the integer 0"));
  for (const char* scale : {"much", "1e39", "8.6e37", "9e-19", "0", "-2", ".inf"})
    CHECK(has(error(fmt::format("training: {{loss_scale: {}}}", scale)),
              fmt::format("training.loss_scale: expected none, dynamic or a number >= 1e-18 and <= 8.5e+37, "
                          "got the string \"{}\"",
                          scale)));
  CHECK(error("training: {loss_scale: 8.5e37}") == "no error");
  CHECK(has(error("model: {max_seq_len: 128}"),
            "default: training.seq_len: 2048 tokens are more than model.max_seq_len 128"));
  const std::string longer = "model: {max_seq_len: 2048}\nvalidation: {seq_len: 4096}\nevaluation: ";
  CHECK(
      has(error(longer + "{enable: true, tasks: [{name: a, path: a.jsonl}]}"),
          "validation.seq_len: 4096 tokens are more than model.max_seq_len 2048; lower validation.seq_len"));
  CHECK(error(longer + "{enable: false, tasks: [{name: a, path: a.jsonl}]}") == "no error");
  CHECK(has(error("model: {n_heads: 12, n_kv_heads: 5}"),
            "n_heads 12 is not a multiple of n_kv_heads 5 (remainder 2)"));
  CHECK(
      has(error("model: {dim: 100, n_heads: 16}"), "dim 100 is not a multiple of n_heads 16 (remainder 4)"));
  CHECK(has(error("model: {head_dim: 15}"), "head_dim 15 is not a multiple of 8"));
  CHECK(has(error("model: {head_dim: 520}"), "expected an integer >= 8 and <= 512"));
  CHECK(error("model: {head_dim: 512}") == "no error");
  CHECK(has(error("model: {ffn_dim: 768, ffn_dim_multiplier: 1.3}"),
            "model.ffn_dim_multiplier: ffn_dim 768 is set as well"));
  CHECK(has(error("model: {ffn_dim: 768, multiple_of: 512}"),
            "model.multiple_of: ffn_dim 768 is set as well; set only one of the two"));
  CHECK(has(error("model: {rope_scaling: {low_freq_factor: 4, high_freq_factor: 1}}"),
            "high_freq_factor 1 must be greater than low_freq_factor 4"));
  CHECK(has(error("model: {rope_scaling: {rope_type: yarn, beta_fast: 1, beta_slow: 2}}"),
            "model.rope_scaling.beta_fast: beta_fast 1 must be at least beta_slow 2"));
  CHECK(has(error("model: {rope_scaling: {rope_type: dynamic}}"), "llama3, linear or yarn"));
  CHECK(has(error("parallelism: {data_parallel_shard_degree: 0}"),
            "expected -1 or an integer >= 1 and <= 1048576, got"));
  // What is kept in 32 bits, or as nanoseconds in 64, is refused beyond.
  CHECK(has(error("parallelism: {tensor_parallel_degree: 4294967297}"),
            "expected an integer >= 1 and <= 1048576, got"));
  CHECK(has(error("parallelism: {tensor_parallel_degree: 65536, data_parallel_shard_degree: 65536}"),
            "all degrees together make 4294967296 ranks; expected at most 1048576"));
  CHECK(has(error("checkpoint: {keep_latest_k: 4294967297}"),
            "expected 0 or an integer >= 2 and <= 1073741824, got"));
  for (const char* key : {"init_timeout_seconds", "train_timeout_seconds"})
    CHECK(has(error(fmt::format("comm: {{{}: 99999999999}}", key)),
              "expected an integer >= 1 and <= 100000000, got"));
  CHECK(has(error("checkpoint: {keep_latest_k: 1}"), "expected 0 or an integer >= 2 and <= 1073741824, got"));
  CHECK(has(error("checkpoint: {keep_every: 700}"), "700 is not a multiple of checkpoint.interval 500"));
  CHECK(has(error("checkpoint: {advance_data_steps: 3}"), "this key needs checkpoint.load_step"));
  for (const char* setting : {"load_step: 4", "load_only: true", "exclude_from_loading: [optimizer]"}) {
    const std::string key(setting, std::strchr(setting, ':'));
    CHECK(has(error(fmt::format("checkpoint: {{{}}}", setting)),
              fmt::format("checkpoint.{}: this key needs checkpoint.enable: true", key)));
    CHECK(error(fmt::format("checkpoint: {{enable: true, {}}}", setting)) == "no error");
  }
  CHECK(has(error("checkpoint: {load_step: 4, load_only: true, exclude_from_loading: [optimizer]}"),
            "3 problems in"));
  const auto epochs_without = [&](const char* checkpoint) {
    return error(fmt::format("training: {{epochs: 2}}\ncheckpoint: {{enable: true, {}}}", checkpoint));
  };
  CHECK(
      has(epochs_without("exclude_from_loading: [dataloader]"),
          "training.epochs: with dataloader in checkpoint.exclude_from_loading every start begins the data"));
  for (const char* checkpoint :
       {"load_step: 4, exclude_from_loading: [dataloader]", "exclude_from_loading: [dataloader, train_state]",
        "load_only: true, exclude_from_loading: [dataloader]", "exclude_from_loading: [optimizer]"})
    CHECK(epochs_without(checkpoint) == "no error");
  CHECK(error("checkpoint: {initial_load_path: else, last_save_model_only: true}") == "no error");
  CHECK(has(error("activation_checkpoint: {selective_ac_option: 0}"),
            "expected op, all_but_attention or an integer >= 1, got the string \"0\""));
  CHECK(has(error("activation_checkpoint: {selective_ac_option: ops}"),
            "expected op, all_but_attention or an integer >= 1"));
  CHECK(has(error("validation: {steps: 0}"), "validation.steps: expected -1 or an integer >= 1, got"));
  CHECK(has(error("quantize: {linear: {float8: {margin: 2}}}"),
            "only recipe delayed uses this key; recipe_name is tensorwise, and no entry of "
            "quantize.linear.float8.policy has recipe delayed"));
  CHECK(
      has(error("quantize: {linear: {float8: {enable_statistics: false, alert_saturation: 0.1}}}"),
          "alert_saturation: alerts need statistics, and quantize.linear.float8.enable_statistics is false"));
  for (const char* key : {"alert_underflow", "alert_gradient_underflow", "alert_saturation"}) {
    CHECK(has(error(fmt::format("quantize: {{linear: {{float8: {{{}: 1.5}}}}}}", key)), key));
    CHECK(has(error(fmt::format("quantize: {{linear: {{float8: {{{}: -0.1}}}}}}", key)), key));
  }
  CHECK(has(error("quantize: {linear: {float8: {amax_history_length: 2}}}"),
            "amax_history_length: only recipe delayed"));
  CHECK(error("quantize: {linear: {float8: {margin: 2, recipe_name: delayed}}}") == "no error");
  CHECK(error("quantize: {linear: {float8: {margin: 2, amax_history_length: 4, "
              "policy: [{match: output, recipe: delayed}]}}}") == "no error");
  // The one that changes nothing is not blamed for the other.
  CHECK(has(error("quantize: {linear: {float8: {amax_history_length: 1024, margin: 2}}}"), "1 problem in"));
  CHECK(has(error("model: {converters: [float8]}\ntraining: {mixed_precision_param: float32}"),
            "float32 is set, but model.converters asks for FP8"));
  CHECK(error("model: {dim: 100, n_heads: 16, head_dim: 16}") == "no error");
  const std::string masked = "model: {attn_mask_type: block_causal}\n";
  for (const std::string format : {"tokens_u16", "tokens_u32"}) {
    const std::string refused =
        "model.attn_mask_type: block_causal needs to know where documents begin, which files of format " +
        format + " do not say: make shards";
    CHECK(has(error(masked + "training: {format: " + format + "}"), refused));
    CHECK(has(error(masked + "training: {mixture: [{name: a, path: a}, {name: b, path: b, format: " + format +
                    "}]}"),
              refused));
    CHECK(has(
        error(masked + "validation: {enable: true, datasets: [{name: a, path: a, format: " + format + "}]}"),
        refused));
    CHECK(error("training: {format: " + format + "}") == "no error");
  }
  CHECK(error(masked + "training: {format: json_lines}") == "no error");
}

TEST_CASE("combinations are reported with the rest, except where a value of the section is missing",
          "[config]") {
  std::string text =
      error("model: {head_dim: 15}\ntraining: {local_batch_size: x, global_batch_size: 20}\nfoo: 1");
  CHECK(has(text, "3 problems in"));
  CHECK(has(text, "f.yaml:1:19: model.head_dim: head_dim 15 is not a multiple of 8"));
  CHECK(has(text, "f.yaml:2:30: training.local_batch_size: expected an integer"));
  CHECK(has(text, "f.yaml:3:1: unknown key foo"));
  CHECK(has(error("model: {head_dim: 15, n_head: 2}"), "1 problem in"));
  CHECK(has(error("model: {head_dim: 15}", {"--model.n_head", "2"}), "1 problem in"));
  CHECK(has(error("model: {head_dim: 15}", {"--training.n_head", "2"}), "2 problems in"));
  const std::string short_model = "model: {max_seq_len: 1024}\n";
  CHECK(has(error(short_model + "training: 7"), "1 problem in"));
  CHECK(has(error(short_model, {"--training.seq_len"}), "1 problem in"));
  CHECK(has(error("quantize: 7", {"--quantize.linear.float8.margin", "2"}), "1 problem in"));
  for (const char* gpu : {"gpu", "GPU"})
    CHECK(has(error("", {"--training.device", gpu}), "\"; did you mean cuda?"));
  // Whatever is inside of a list that was given as an option.
  for (const auto& [entry, problem] :
       {std::pair{"{path: a, weight: abc}", "training.mixture[0].weight: expected"},
        std::pair{"{path: a, weigt: 1}", "unknown key training.mixture[0].weigt"},
        std::pair{"{path: [{a: 1}]}", "training.mixture[0].path: expected"}})
    CHECK(has(error("", {"--training.mixture", "[" + std::string(entry) + "]"}),
              "\n  command line: " + std::string(problem)));
}

TEST_CASE("a list of tables that is none is one problem, which says what a table has", "[config]") {
  for (const char* key : {"evaluation.tasks", "validation.datasets"}) {
    const std::string text = error("", {fmt::format("--{}", key), "q.jsonl"});
    CHECK(has(text, "1 problem"));
    CHECK(has(text, fmt::format("{}[0]: expected a table of keys {{name: ..., path: ...}}, got the string "
                                "\"q.jsonl\"",
                                key)));
  }
  const std::string text = error("evaluation: {tasks: [{path: q.jsonl}]}");
  CHECK(has(text, "1 problem"));
  CHECK(has(text, "evaluation.tasks[0].name is missing"));
}

TEST_CASE("numbers that float32 turns into 1 or 0 are refused", "[config]") {
  for (const char* key : {"beta1", "beta2", "momentum"}) {
    CHECK(has(error(fmt::format("optimizer: {{{}: 0.99999999}}", key)),
              fmt::format("optimizer.{}: expected a number >= 0 and <= 0.99999997, got", key)));
    CHECK(error(fmt::format("optimizer: {{{}: 0.99999994}}", key)) == "no error");
  }
  CHECK(has(error("optimizer: {eps: 9e-16}"), "optimizer.eps: expected a number >= 1e-15 and"));
  for (const char* key : {"lr", "eps", "weight_decay"})
    CHECK(has(error(fmt::format("optimizer: {{{}: 1e39}}", key)), "and <= 3.4028235e+38, got"));
  const auto group = [](const char* keys) {
    return error(
        fmt::format("optimizer: {{lr: 10, param_groups: [{{match: '*'}}, {{match: b, {}}}]}}", keys));
  };
  for (const char* key : {"weight_decay", "lr_factor"})
    CHECK(has(group(fmt::format("{}: 1e39", key).c_str()),
              fmt::format("param_groups[1].{}: expected a number >= 0 and <= 3.4028235e+38, got", key)));
  CHECK(has(group("lr_factor: 1e38"),
            "entry 2: lr times lr_factor 1e+39 is too large for float32; expected at most 3.4"));
  CHECK(group("lr_factor: 1e37, weight_decay: 1e38") == "no error");
  CHECK(has(error("optimizer: {ns_coefficients: ['-1e300', '1', '2']}"),
            "optimizer.ns_coefficients: [-1e300, 1, 2] is too large for float32; expected at most 3.4"));
  CHECK(error("optimizer: {ns_coefficients: ['1e38', '-1', '2']}") == "no error");
  for (const char* norm : {"0", "1e-50"})
    CHECK(has(error(fmt::format("training: {{max_norm: {}}}", norm)),
              "expected a number >= 1.1754943e-38, got"));
  for (const char* norm : {"1e-30", "1e39", "1e300"})
    CHECK(error(fmt::format("training: {{max_norm: {}}}", norm)) == "no error");
  using Limits = std::numeric_limits<float>;
  CHECK(error(fmt::format("optimizer: {{lr: {:.17g}, eps: 1e-15}}\ntraining: {{max_norm: {:.17g}}}",
                          double{Limits::max()}, double{Limits::min()})) == "no error");
  static_assert(static_cast<float>(config::kLeastFloat) == Limits::min());
  static_assert(static_cast<float>(config::kMostFloat) == Limits::max());
  static_assert(static_cast<float>(config::kMostBelowOne) == 1 - Limits::epsilon() / 2);
}

TEST_CASE("mixed_precision_level fills in what is not said and refuses what contradicts", "[config]") {
  Config o0 = parse("training: {mixed_precision_level: O0}");
  CHECK(o0.training.mixed_precision_param == DType::f32);
  CHECK_FALSE(o0.model.uses_float8());
  Config o1 = parse("training: {mixed_precision_level: O1}");
  CHECK(o1.training.mixed_precision_param == DType::bf16);
  CHECK(o1.model.uses_float8());
  Config o2 = parse("training: {mixed_precision_level: O2}");
  CHECK(o2.training.mixed_precision_param == DType::bf16);
  CHECK_FALSE(o2.model.uses_float8());
  for (const Config& c : {o0, o1, o2}) CHECK((parse(print_config(c)) == c));
  CHECK(has(error("training: {mixed_precision_level: O0, mixed_precision_param: bfloat16}"),
            "mixed_precision_level O0 means f32, but this key is bf16"));
  CHECK(has(error("training: {mixed_precision_level: O2, mixed_precision_param: float32}"),
            "mixed_precision_level O2 means bf16, but this key is f32"));
  CHECK(has(error("training: {mixed_precision_level: O2}\nmodel: {converters: [float8]}"),
            "mixed_precision_level O2 means bf16, but quantize.linear.float8 is in this list"));
  CHECK(has(error("training: {mixed_precision_level: O1}\nmodel: {converters: []}"),
            "mixed_precision_level O1 means fp8, but quantize.linear.float8 is missing from this list"));
  // Nothing follows from what the level has filled in.
  for (const char* text : {"training: {mixed_precision_level: O1, mixed_precision_param: float32}",
                           "training: {mixed_precision_level: O0}\nmodel: {converters: [float8]}"})
    CHECK(has(error(text), "[config] 1 problem in "));
  CHECK(has(error("training: {mixed_precision_param: float32}\nmodel: {converters: [float8]}"),
            "float32 is set, but model.converters asks for FP8"));
  CHECK(has(error("training: {mixed_precision_level: O3}"),
            "expected \"\", O0, O1 or O2, got the string \"O3\""));
}

TEST_CASE("values that have two spellings", "[config]") {
  CHECK(parse("activation_checkpoint: {selective_ac_option: 3}").activation_checkpoint.every_nth_block() ==
        3);
  CHECK(parse("activation_checkpoint: {selective_ac_option: '3'}").activation_checkpoint.every_nth_block() ==
        3);
  CHECK(parse("activation_checkpoint: {selective_ac_option: op}").activation_checkpoint.per_op());
  CHECK(parse("activation_checkpoint: {selective_ac_option: all_but_attention}")
            .activation_checkpoint.all_but_attention());
  CHECK(parse("training: {loss_scale: 1024}").training.constant_loss_scale() == 1024.0);
  CHECK(parse("training: {loss_scale: none}").training.constant_loss_scale() == 1.0);
  CHECK(parse("training: {loss_scale: dynamic}").training.constant_loss_scale() == std::nullopt);
  using Reduce = ParallelismConfig::Reduce;
  CHECK(parse("parallelism: {fsdp_reduce_every_microbatch: true}").parallelism.fsdp_reduce_every_microbatch ==
        Reduce::every_microbatch);
  CHECK(parse("", {"--parallelism.fsdp_reduce_every_microbatch", "false"})
            .parallelism.fsdp_reduce_every_microbatch == Reduce::once_per_step);
  CHECK(parse("training: {dataset_path: a.txt}").training.dataset_path == std::vector<std::string>{"a.txt"});
  CHECK(parse("training: {dataset_path: [a, b]}").training.dataset_path ==
        std::vector<std::string>{"a", "b"});
  CHECK(parse("optimizer: {param_groups: [{match: '*norm*', weight_decay: 0}]}").optimizer.param_groups ==
        std::vector<ParamGroupConfig>{{"*norm*", 0.0, 1.0}});
}

TEST_CASE("a schedule that ends before the run is told, with what the rest learns at", "[config]") {
  const auto told = [](const std::string& schedule, const std::string& training = "steps: 400") {
    return parse(fmt::format("training: {{{}}}\noptimizer: {{lr: 0.002}}\nlr_scheduler: {{{}}}\n", training,
                             schedule))
        .provenance;
  };
  const std::string start =
      "lr_scheduler.total_steps 100 is less than training.steps 400: after that step the learning rate ";
  using Lines = std::vector<std::string>;
  CHECK(told("total_steps: 100, warmup_steps: 10").warnings ==
        Lines{start + "is 0 and nothing is learned (lr_scheduler.min_lr_factor)"});
  CHECK(told("total_steps: 100, warmup_steps: 10, min_lr_factor: 0.1").warnings.empty());
  CHECK(told("total_steps: 100, warmup_steps: 10, min_lr_factor: 0.1").notes ==
        Lines{start + "stays at 0.0002 (lr_scheduler.min_lr_factor)"});
  CHECK(told("total_steps: 400").warnings.empty());
  CHECK(told("warmup_steps: 10").warnings.empty());
  // Nothing decays, and the rest learns as what was before it.
  for (const char* flat : {"total_steps: 100, decay_ratio: 0", "total_steps: 100, warmup_steps: 100"}) {
    CHECK(told(flat).warnings.empty());
    CHECK(told(flat).notes.empty());
  }
}

TEST_CASE("validation at positions that training never has is told, unless it is asked for", "[config]") {
  const auto told = [](const std::string& validation, int length = 64) {
    return parse(fmt::format("training: {{seq_len: {}}}\nvalidation: {{{}}}\n", length, validation))
        .provenance.warnings;
  };
  CHECK(told("enable: true, dataset_path: a.txt") ==
        std::vector<std::string>{
            "validation.seq_len is 2048 by default, but training.seq_len 64: validation has "
            "positions that training never has, at which the loss is higher unless the weights that training "
            "begins with know them; set validation.seq_len to 64 to compare the two losses"});
  CHECK(told("enable: true, dataset_path: a.txt", 2048).empty());
  CHECK(told("enable: true, dataset_path: a.txt, seq_len: 64").empty());
  CHECK(told("enable: true, dataset_path: a.txt, seq_len: 128").empty());
  CHECK(told("dataset_path: a.txt").empty());
}
