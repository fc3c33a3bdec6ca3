// Every key of TorchTitan's TOML era (the last such version, and v0.1.0 where it differs) has a fate, and
// behaves so.
#include <fmt/core.h>

#include <sstream>

#include "apps/config/config.h"
#include "apps/config/foreign_keys.h"
#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/config_of_text.h"

using namespace ottava;

namespace {

enum class Fate { used, noted, refused, renamed };

struct Key {
  std::string path;
  std::string fallback;  ///< TorchTitan's default, in YAML
  std::string other;     ///< some other value that TorchTitan takes
  Fate fate;
};

constexpr Fate used = Fate::used, noted = Fate::noted, refused = Fate::refused, renamed = Fate::renamed;

const Key kKeys[] = {
    {"job.dump_folder", "./outputs", "elsewhere", used},
    {"job.description", "default job", "mine", used},
    {"job.print_config", "false", "true", used},
    {"job.print_args", "false", "true", renamed},
    {"job.save_config_file", "null", "c.json", used},
    {"metrics.log_freq", "10", "1", used},
    {"metrics.enable_tensorboard", "false", "true", used},
    {"metrics.disable_color_printing", "false", "true", used},
    {"metrics.save_tb_folder", "tb", "events", used},
    {"metrics.save_for_all_ranks", "false", "true", used},
    {"model.name", "llama3", "llama3", used},
    {"model.flavor", "debugmodel", "8B", used},
    {"model.hf_assets_path", "./tests/assets/tokenizer", "assets", used},
    {"model.converters", "[]", "[quantize.linear.float8]", used},
    {"optimizer.name", "AdamW", "AdamW", used},
    {"optimizer.lr", "8.0e-4", "3.0e-4", used},
    {"optimizer.beta1", "0.9", "0.8", used},
    {"optimizer.beta2", "0.95", "0.99", used},
    {"optimizer.eps", "1.0e-8", "1.0e-6", used},
    {"optimizer.weight_decay", "0.1", "0", used},
    {"lr_scheduler.warmup_steps", "200", "2", used},
    {"lr_scheduler.total_steps", "null", "100", used},
    {"lr_scheduler.decay_ratio", "null", "0.8", used},
    {"lr_scheduler.decay_type", "linear", "cosine", used},
    {"lr_scheduler.min_lr_factor", "0.0", "0.1", used},
    {"lr_scheduler.lr_min", "0.0", "0.1", renamed},
    {"training.dataset", "c4_test", "c4", used},
    {"training.dataset_path", "null", "a.txt", used},
    {"training.local_batch_size", "8", "1", used},
    {"training.global_batch_size", "-1", "64", used},
    {"training.seq_len", "2048", "8192", used},
    {"training.max_norm", "1.0", "0.5", used},
    {"training.steps", "10000", "10", used},
    {"training.dtype", "float32", "bfloat16", refused},
    {"training.mixed_precision_param", "bfloat16", "float32", used},
    {"training.mixed_precision_reduce", "float32", "float32", used},
    {"training.dataloader.num_workers", "0", "2", used},
    {"training.dataloader.prefetch_factor", "null", "4", used},
    {"training.compile", "false", "true", renamed},
    {"training.seed", "null", "42", used},
    {"training.deterministic", "false", "true", renamed},
    {"parallelism.data_parallel_replicate_degree", "1", "2", used},
    {"parallelism.data_parallel_shard_degree", "-1", "4", used},
    {"parallelism.fsdp_reshard_after_forward", "default", "never", used},
    {"parallelism.tensor_parallel_degree", "1", "8", used},
    {"parallelism.pipeline_parallel_degree", "1", "4", used},
    {"parallelism.pipeline_parallel_schedule", "1F1B", "GPipe", used},
    {"parallelism.pipeline_parallel_microbatch_size", "1", "2", used},
    {"parallelism.pipeline_parallel_layers_per_stage", "null", "4", used},
    {"parallelism.pipeline_parallel_first_stage_less_layers", "1", "0", used},
    {"parallelism.pipeline_parallel_last_stage_less_layers", "1", "2", used},
    {"parallelism.pipeline_parallel_split_points", "[]", "[layers.2]", used},
    {"parallelism.context_parallel_degree", "1", "2", used},
    {"parallelism.disable_loss_parallel", "false", "true", used},
    {"parallelism.enable_async_tensor_parallel", "false", "true", used},
    {"checkpoint.enable", "false", "true", used},
    {"checkpoint.enable_checkpoint", "false", "true", renamed},
    {"checkpoint.folder", "checkpoint", "c", used},
    {"checkpoint.interval", "500", "10", used},
    {"checkpoint.initial_load_path", "null", "hf", used},
    {"checkpoint.initial_load_model_only", "true", "false", used},
    {"checkpoint.initial_load_model_weights_only", "true", "false", renamed},
    {"checkpoint.last_save_model_only", "false", "true", used},
    {"checkpoint.last_save_model_weights_only", "false", "true", renamed},
    {"checkpoint.export_dtype", "float32", "bfloat16", used},
    {"checkpoint.async_mode", "disabled", "async_with_pinned_mem", used},
    {"checkpoint.keep_latest_k", "10", "0", used},
    {"checkpoint.load_step", "-1", "20", used},
    {"checkpoint.exclude_from_loading", "[]", "[optimizer, dataloader]", used},
    {"checkpoint.enable_first_step_checkpoint", "false", "true", used},
    {"checkpoint.load_only", "false", "true", used},
    {"activation_checkpoint.mode", "selective", "full", used},
    {"activation_checkpoint.selective_ac_option", "'2'", "op", used},
    {"quantize.linear.float8.enable_fsdp_float8_all_gather", "false", "true", used},
    {"quantize.linear.float8.recipe_name", "null", "rowwise_with_gw_hp", used},
    {"quantize.linear.float8.filter_fqns", "[]", "[output, auto_filter_small_kn]", used},
    {"quantize.linear.float8.emulate", "false", "true", used},
    {"float8.recipe_name", "null", "rowwise", renamed},
    {"float8.filter_fqns", "[]", "[output]", renamed},
    {"float8.force_recompute_fp8_weight_in_bwd", "false", "true", renamed},
    {"mx.recipe_name", "mxfp8_cublas", "mxfp8_emulated", renamed},
    {"comm.init_timeout_seconds", "300", "600", used},
    {"comm.train_timeout_seconds", "100", "60", used},
    {"comm.mode", "default", "fake_backend", refused},
    {"validation.enable", "false", "true", used},
    {"validation.dataset", "c4_validation", "mine", used},
    {"validation.dataset_path", "null", "v.txt", used},
    {"validation.local_batch_size", "8", "1", used},
    {"validation.seq_len", "2048", "512", used},
    {"validation.freq", "10", "5", used},
    {"validation.steps", "-1", "10", used},
    {"validation.dataloader.num_workers", "0", "2", used},
    {"validation.dataloader.prefetch_factor", "null", "4", used},
    {"debug.seed", "null", "42", renamed},
    {"debug.deterministic", "false", "true", used},
};

std::string yaml_of(const config::Value& value) {
  std::string items;
  for (const config::Value& item : value.items) items += (items.empty() ? "" : ", ") + item.text;
  switch (value.kind) {
    case config::Value::Kind::null:
      return "null";
    case config::Value::Kind::list:
      return "[" + items + "]";
    case config::Value::Kind::text:
      return "'" + value.text + "'";
    default:
      return value.text;
  }
}

/// A value that the key takes and that is not its default.
std::string other_than_default(const config::Field& key) {
  switch (key.type) {
    case config::Type::boolean:
      return key.fallback.boolean ? "false" : "true";
    case config::Type::integer:
      return std::to_string(key.fallback.integer + 1);
    case config::Type::real:
      return "0.25";
    case config::Type::text:
      return key.choices.empty() ? "other" : key.choices.back();
    default:
      return "[other]";
  }
}

/// Those above and those of the table of foreign keys.
std::vector<Key> all_keys() {
  std::vector<Key> keys(std::begin(kKeys), std::end(kKeys));
  config::Section root;
  declare_foreign_keys(root);
  auto add = [&](auto&& self, const config::Section& section) -> void {
    for (const config::Field& key : section.fields()) {
      keys.push_back({key.path, yaml_of(key.fallback), other_than_default(key),
                      key.fate == config::Fate::noted ? noted : refused});
    }
    for (const config::Section& child : section.sections()) self(self, child);
  };
  add(add, root);
  return keys;
}

/// `a.b.c` and a value as YAML.
std::string yaml_of(const std::string& path, const std::string& value) {
  std::string text, indent;
  std::stringstream names(path);
  for (std::string name; std::getline(names, name, '.'); indent += "  ")
    text += (text.empty() ? "" : "\n") + indent + name + ":";
  return text + " " + value + "\n";
}

Config load(const std::string& path, const std::string& value) {
  return test::config_of_text(yaml_of(path, value), "f.yaml");
}

/// Refused without checkpoint.enable.
bool goes_with_checkpoints(std::string_view path) {
  return path == "checkpoint.load_step" || path == "checkpoint.load_only" ||
         path == "checkpoint.exclude_from_loading";
}

std::string notes_of(const Config& c) {
  std::string text;
  for (const std::string& note : c.provenance.notes) text += note + "\n";
  return text;
}

}  // namespace

TEST_CASE("every TorchTitan key is taken at its default, without a change or a refusal", "[config]") {
  CHECK(all_keys().size() == 161);
  for (const Key& key : all_keys()) {
    INFO(key.path);
    Config c;
    REQUIRE_NOTHROW(c = load(key.path, key.fallback));
    CHECK((c == Config{}));  // so the defaults are TorchTitan's, but for one: a last save keeps what is
                             // needed to go on
    CHECK((key.fate == renamed) == (notes_of(c).find("is now called") != std::string::npos));
  }
}

TEST_CASE("every TorchTitan key set to something else is used, noted or refused", "[config]") {
  for (const Key& key : all_keys()) {
    INFO(key.path << ": " << key.other);
    if (key.fate == refused) {
      std::string message;
      try {
        load(key.path, key.other);
      } catch (const ConfigError& e) {
        message = e.what();
      }
      CHECK(message.find(fmt::format("{}: ", key.path)) != std::string::npos);
      CHECK(message.find(" is not supported: ") != std::string::npos);
      continue;
    }
    Config c, unset;
    unset.checkpoint.enable = goes_with_checkpoints(key.path);
    const std::string beside = unset.checkpoint.enable ? "  enable: true\n" : "";
    REQUIRE_NOTHROW(c = test::config_of_text(yaml_of(key.path, key.other) + beside, "f.yaml"));
    std::string notes = notes_of(c);
    if (key.fate == used) {
      bool has_one_value = key.fallback == key.other;
      bool names_one_family = key.path == "model.name" || key.path == "optimizer.name";
      CHECK((has_one_value || !(c == unset)));
      CHECK((!has_one_value || names_one_family || key.path == "training.mixed_precision_reduce"));
      CHECK(notes.find(key.path + " ignored") == std::string::npos);
    } else if (key.fate == noted) {
      CHECK((c == Config{}));
      CHECK(notes.find(key.path) != std::string::npos);
      CHECK(notes.find(" ignored: ") != std::string::npos);
    } else {
      CHECK(notes.find(" is now called ") != std::string::npos);
    }
  }
}

TEST_CASE("old names reach the new keys", "[config]") {
  Config c = test::config_of_text(
      "job: {print_args: true}\nlr_scheduler: {lr_min: 0.1}\ntraining: {deterministic: true, compile: true}\n"
      "checkpoint: {enable_checkpoint: true, initial_load_model_weights_only: false, "
      "last_save_model_weights_only: false}\n"
      "debug: {seed: 42}\nmodel: {converters: [float8]}\nfloat8: {recipe_name: rowwise, filter_fqns: "
      "[output]}\n",
      "f.yaml");
  CHECK(c.job.print_config);
  CHECK(c.lr_scheduler.min_lr_factor == 0.1);
  CHECK(c.debug.deterministic);
  CHECK(c.checkpoint.enable);
  CHECK_FALSE(c.checkpoint.initial_load_model_only);
  CHECK_FALSE(c.checkpoint.last_save_model_only);
  CHECK(c.training.seed == 42);
  CHECK(c.model.uses_float8());
  CHECK(c.float8.recipe_name == "rowwise");
  CHECK(c.float8.filter_fqns == std::vector<std::string>{"output"});
  CHECK(notes_of(c).find("compile.enable ignored: ") != std::string::npos);
}

TEST_CASE("the values of a key that this trainer lacks are refused by name", "[config]") {
  auto message = [](const char* path, const char* value) {
    try {
      load(path, value);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(message("activation_checkpoint.mode", "memory_budget").find("memory_budget is not supported: ") !=
        std::string::npos);
  CHECK(message("optimizer.name", "Adam").find("Adam is not supported: ") != std::string::npos);
  CHECK(message("model.converters", "[mx]").find("recipe_name mxfp8") != std::string::npos);
  CHECK(message("model.converters", "[quantize.linear.mx]").find("recipe_name mxfp8") != std::string::npos);
  CHECK(message("model.converters", "[quantize.grouped_mm.float8]").find("dense") != std::string::npos);
  CHECK(message("model.converters", "[quantize.grouped_mm.mx]").find("dense") != std::string::npos);
  CHECK(message("comm.mode", "local_tensor").find("ottava plan") != std::string::npos);
  CHECK(message("training.dtype", "bfloat16").find("optimizer.state_dtype") != std::string::npos);
}

TEST_CASE("files with the sections and keys of TorchTitan's own load, and what they say arrives",
          "[config]") {
  auto load_file = [](const std::string& name) {
    Config c = load_config(OTTAVA_SOURCE_DIR "/tests/apps/config/torchtitan/" + name);
    CHECK((test::config_of_text(print_config(c), "printed.yaml") == c));
    return c;
  };
  Config small = load_file("small.toml");
  CHECK(small.model.flavor == "debugmodel");
  CHECK(small.lr_scheduler.decay_ratio == 0.6);
  CHECK(small.training.steps == 12);
  CHECK_FALSE(small.checkpoint.last_save_model_only);
  CHECK(small.activation_checkpoint.every_nth_block() == 3);
  CHECK_FALSE(small.model.uses_float8());
  CHECK(
      notes_of(small).find("FP8 is off, because model.converters does not contain quantize.linear.float8") !=
      std::string::npos);

  Config medium = load_file("8b.toml");
  CHECK(medium.optimizer.lr == 2.5e-4);
  CHECK(medium.activation_checkpoint.per_op());
  CHECK(medium.training.seq_len == 4096);

  CHECK(load_file("70b.toml").parallelism.tensor_parallel_degree == 4);

  Config large = load_file("405b.toml");
  CHECK(large.model.uses_float8());
  CHECK(large.float8.enable_fsdp_float8_all_gather);
  CHECK(large.activation_checkpoint.mode == ActivationCheckpointConfig::Mode::full);
  CHECK(notes_of(large).find("compile.enable ignored: ") != std::string::npos);
}
