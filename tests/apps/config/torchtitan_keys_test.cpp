// Every key of TorchTitan's TOML era (the last such version, and v0.1.0 where it differs) has a fate, and
// behaves so.
#include <fmt/core.h>

#include <map>
#include <sstream>

#include "apps/config/config.h"
#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;

namespace {

enum class Fate { used, noted, refused, renamed };

struct Key {
  const char* path;
  const char* fallback;  ///< TorchTitan's default, in YAML
  const char* other;     ///< some other value that TorchTitan takes
  Fate fate;
};

constexpr Fate used = Fate::used, noted = Fate::noted, refused = Fate::refused, renamed = Fate::renamed;

const Key kKeys[] = {
    {"job.config_file", "null", "x.toml", refused},
    {"job.dump_folder", "./outputs", "elsewhere", used},
    {"job.description", "default job", "mine", used},
    {"job.print_config", "false", "true", used},
    {"job.print_args", "false", "true", renamed},
    {"job.save_config_file", "null", "c.json", used},
    {"job.custom_config_module", "''", "a.b", refused},
    {"job.use_for_integration_test", "false", "true", noted},
    {"profiling.enable_profiling", "false", "true", noted},
    {"profiling.save_traces_folder", "profile_traces", "t", noted},
    {"profiling.profile_freq", "10", "100", noted},
    {"profiling.profiler_active", "1", "2", noted},
    {"profiling.profiler_warmup", "3", "4", noted},
    {"profiling.enable_memory_snapshot", "false", "true", noted},
    {"profiling.save_memory_snapshot_folder", "memory_snapshot", "m", noted},
    {"metrics.log_freq", "10", "1", used},
    {"metrics.enable_tensorboard", "false", "true", used},
    {"metrics.disable_color_printing", "false", "true", used},
    {"metrics.save_tb_folder", "tb", "events", used},
    {"metrics.save_for_all_ranks", "false", "true", used},
    {"metrics.enable_wandb", "false", "true", refused},
    {"model.name", "llama3", "llama3", used},
    {"model.flavor", "debugmodel", "8B", used},
    {"model.hf_assets_path", "./tests/assets/tokenizer", "assets", used},
    {"model.tokenizer_path", "null", "tokenizer.model", refused},
    {"model.converters", "[]", "[quantize.linear.float8]", used},
    {"model.print_after_conversion", "false", "true", noted},
    {"optimizer.name", "AdamW", "AdamW", used},
    {"optimizer.lr", "8.0e-4", "3.0e-4", used},
    {"optimizer.beta1", "0.9", "0.8", used},
    {"optimizer.beta2", "0.95", "0.99", used},
    {"optimizer.eps", "1.0e-8", "1.0e-6", used},
    {"optimizer.weight_decay", "0.1", "0", used},
    {"optimizer.implementation", "fused", "for-loop", noted},
    {"optimizer.early_step_in_backward", "false", "true", refused},
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
    {"training.enable_cpu_offload", "false", "true", refused},
    {"training.dtype", "float32", "bfloat16", refused},
    {"training.mixed_precision_param", "bfloat16", "float32", used},
    {"training.mixed_precision_reduce", "float32", "float32", used},
    {"training.gc_freq", "50", "100", noted},
    {"training.gc_debug", "false", "true", noted},
    {"training.dataloader.num_workers", "0", "2", used},
    {"training.dataloader.persistent_workers", "false", "true", noted},
    {"training.dataloader.pin_memory", "false", "true", noted},
    {"training.dataloader.prefetch_factor", "null", "4", used},
    {"training.compile", "false", "true", renamed},
    {"training.seed", "null", "42", used},
    {"training.deterministic", "false", "true", renamed},
    {"parallelism.data_parallel_replicate_degree", "1", "2", used},
    {"parallelism.data_parallel_shard_degree", "-1", "4", used},
    {"parallelism.fsdp_reshard_after_forward", "default", "never", used},
    {"parallelism.tensor_parallel_degree", "1", "8", used},
    {"parallelism.disable_loss_parallel", "false", "true", used},
    {"parallelism.enable_async_tensor_parallel", "false", "true", noted},
    {"parallelism.pipeline_parallel_degree", "1", "2", refused},
    {"parallelism.module_fqns_per_model_part", "null", "[a]", refused},
    {"parallelism.pipeline_parallel_split_points", "[]", "[layers.2]", refused},
    {"parallelism.pipeline_parallel_first_stage_less_layers", "1", "2", noted},
    {"parallelism.pipeline_parallel_last_stage_less_layers", "1", "2", noted},
    {"parallelism.pipeline_parallel_layers_per_stage", "null", "2", noted},
    {"parallelism.pipeline_parallel_schedule", "1F1B", "Interleaved1F1B", noted},
    {"parallelism.pipeline_parallel_schedule_csv", "''", "s.csv", noted},
    {"parallelism.pipeline_parallel_microbatch_size", "1", "2", noted},
    {"parallelism.pipeline_parallel_expert_parallel_overlap", "true", "false", noted},
    {"parallelism.context_parallel_degree", "1", "2", refused},
    {"parallelism.context_parallel_load_balancer", "headtail", "ptrr", noted},
    {"parallelism.context_parallel_rotate_method", "allgather", "alltoall", noted},
    {"parallelism.expert_parallel_degree", "1", "2", refused},
    {"parallelism.expert_tensor_parallel_degree", "1", "2", refused},
    {"parallelism.expert_parallel_comm_backend", "standard", "deepep", noted},
    {"parallelism.enable_compiled_autograd", "false", "true", noted},
    {"checkpoint.enable", "false", "true", used},
    {"checkpoint.enable_checkpoint", "false", "true", renamed},
    {"checkpoint.enable_ft_dataloader_checkpoints", "true", "false", noted},
    {"checkpoint.folder", "checkpoint", "c", used},
    {"checkpoint.interval", "500", "10", used},
    {"checkpoint.initial_load_path", "null", "hf", used},
    {"checkpoint.initial_load_model_only", "true", "false", used},
    {"checkpoint.initial_load_model_weights_only", "true", "false", renamed},
    {"checkpoint.initial_load_in_hf", "false", "true", noted},
    {"checkpoint.initial_load_in_hf_quantized", "false", "true", refused},
    {"checkpoint.last_save_model_only", "false", "true", used},
    {"checkpoint.last_save_model_weights_only", "false", "true", renamed},
    {"checkpoint.last_save_in_hf", "false", "true", noted},
    {"checkpoint.export_dtype", "float32", "bfloat16", used},
    {"checkpoint.async_mode", "disabled", "async_with_pinned_mem", used},
    {"checkpoint.keep_latest_k", "10", "0", used},
    {"checkpoint.load_step", "-1", "20", used},
    {"checkpoint.exclude_from_loading", "[]", "[optimizer, dataloader]", used},
    {"checkpoint.enable_first_step_checkpoint", "false", "true", used},
    {"checkpoint.create_seed_checkpoint", "false", "true", noted},
    {"checkpoint.load_only", "false", "true", used},
    {"activation_checkpoint.mode", "selective", "full", used},
    {"activation_checkpoint.selective_ac_option", "'2'", "op", used},
    {"activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", "[moe.router.gate]", "[]", noted},
    {"activation_checkpoint.early_stop", "false", "true", noted},
    {"activation_checkpoint.memory_budget", "0.5", "0.3", noted},
    {"activation_checkpoint.visualize_memory_budget_pareto", "false", "true", noted},
    {"activation_checkpoint.preserve_rng_state", "true", "false", noted},
    {"activation_checkpoint.determinism_check", "default", "none", noted},
    {"activation_checkpoint.debug", "false", "true", noted},
    {"compile.enable", "false", "true", noted},
    {"compile.components", "[model, loss]", "[model]", noted},
    {"compile.backend", "inductor", "aot_eager", noted},
    {"quantize.linear.float8.enable_fsdp_float8_all_gather", "false", "true", used},
    {"quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", "false", "true", noted},
    {"quantize.linear.float8.recipe_name", "null", "rowwise_with_gw_hp", used},
    {"quantize.linear.float8.filter_fqns", "[]", "[output, auto_filter_small_kn]", used},
    {"quantize.linear.float8.emulate", "false", "true", used},
    {"quantize.linear.float8.force_recompute_fp8_weight_in_bwd", "false", "true", noted},
    {"float8.recipe_name", "null", "rowwise", renamed},
    {"float8.filter_fqns", "[]", "[output]", renamed},
    {"float8.force_recompute_fp8_weight_in_bwd", "false", "true", renamed},
    {"quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", "triton", "cuda", noted},
    {"quantize.linear.mx.recipe_name", "mxfp8_cublas", "mxfp8_emulated", noted},
    {"quantize.linear.mx.filter_fqns", "[output]", "[]", noted},
    {"mx.recipe_name", "mxfp8_cublas", "mxfp8_emulated", renamed},
    {"quantize.grouped_mm.float8.fqns", "[]", "[experts]", refused},
    {"quantize.grouped_mm.mx.recipe_name", "mxfp8", "other", noted},
    {"quantize.grouped_mm.mx.fqns", "[]", "[experts]", refused},
    {"comm.init_timeout_seconds", "300", "600", used},
    {"comm.train_timeout_seconds", "100", "60", used},
    {"comm.trace_buf_size", "20000", "0", noted},
    {"comm.save_traces_folder", "comm_traces", "t", noted},
    {"comm.save_traces_file_prefix", "rank_", "r", noted},
    {"comm.mode", "default", "fake_backend", refused},
    {"memory_estimation.enable", "false", "true", refused},
    {"memory_estimation.disable_fake_mode", "false", "true", noted},
    {"fault_tolerance.enable", "false", "true", refused},
    {"fault_tolerance.process_group", "gloo", "nccl", noted},
    {"fault_tolerance.process_group_timeout_ms", "10000", "20000", noted},
    {"fault_tolerance.replica_id", "0", "1", noted},
    {"fault_tolerance.group_size", "0", "2", noted},
    {"fault_tolerance.min_replica_size", "1", "2", noted},
    {"fault_tolerance.semi_sync_method", "null", "diloco", refused},
    {"fault_tolerance.sync_steps", "5", "6", noted},
    {"fault_tolerance.should_quantize", "false", "true", noted},
    {"fault_tolerance.fragment_sync_delay", "0", "1", noted},
    {"fault_tolerance.fragment_update_alpha", "0.0", "0.5", noted},
    {"experimental.custom_import", "''", "a.b", refused},
    {"experimental.custom_args_module", "''", "a.b", refused},
    {"validation.enable", "false", "true", used},
    {"validation.dataset", "c4_validation", "mine", used},
    {"validation.dataset_path", "null", "v.txt", used},
    {"validation.local_batch_size", "8", "1", used},
    {"validation.seq_len", "2048", "512", used},
    {"validation.freq", "10", "5", used},
    {"validation.steps", "-1", "10", used},
    {"validation.dataloader.num_workers", "0", "2", used},
    {"validation.dataloader.persistent_workers", "false", "true", noted},
    {"validation.dataloader.pin_memory", "false", "true", noted},
    {"validation.dataloader.prefetch_factor", "null", "4", used},
    {"debug.seed", "null", "42", renamed},
    {"debug.deterministic", "false", "true", used},
    {"debug.deterministic_warn_only", "false", "true", noted},
    {"debug.moe_force_load_balance", "false", "true", noted},
};

/// `a.b.c` and a value as YAML.
std::string yaml_of(const std::string& path, const std::string& value) {
  std::string text, indent;
  std::stringstream names(path);
  for (std::string name; std::getline(names, name, '.'); indent += "  ")
    text += (text.empty() ? "" : "\n") + indent + name + ":";
  return text + " " + value + "\n";
}

Config load(const std::string& path, const std::string& value) {
  return parse_config(yaml_of(path, value), "f.yaml");
}

std::string notes_of(const Config& c) {
  std::string text;
  for (const std::string& note : c.provenance.notes) text += note + "\n";
  return text;
}

}  // namespace

TEST_CASE("every TorchTitan key is taken at its default, without a change or a refusal", "[config]") {
  for (const Key& key : kKeys) {
    INFO(key.path);
    Config c;
    REQUIRE_NOTHROW(c = load(key.path, key.fallback));
    CHECK((c == Config{}));  // so the defaults are TorchTitan's, but for one: a last save keeps what is
                             // needed to go on
    CHECK((key.fate == renamed) == (notes_of(c).find("is now called") != std::string::npos));
  }
}

TEST_CASE("every TorchTitan key set to something else is used, noted or refused", "[config]") {
  for (const Key& key : kKeys) {
    INFO(key.path << ": " << key.other);
    if (key.fate == refused) {
      std::string message;
      try {
        load(key.path, key.other);
      } catch (const ConfigError& e) {
        message = e.what();
      }
      CHECK(message.find(fmt::format("{}: ", key.path)) != std::string::npos);
      CHECK(message.find(" is refused: ") != std::string::npos);
      continue;
    }
    Config c;
    REQUIRE_NOTHROW(c = load(key.path, key.other));
    std::string notes = notes_of(c);
    if (key.fate == used) {
      bool has_one_value = std::string(key.fallback) == key.other;
      bool names_one_family =
          std::string(key.path) == "model.name" || std::string(key.path) == "optimizer.name";
      CHECK((has_one_value || !(c == Config{})));
      CHECK(
          (!has_one_value || names_one_family || std::string(key.path) == "training.mixed_precision_reduce"));
      CHECK(notes.find(key.path + std::string(": no meaning")) == std::string::npos);
    } else if (key.fate == noted) {
      CHECK((c == Config{}));
      CHECK(notes.find(key.path) != std::string::npos);
      CHECK(notes.find("no meaning here: ") != std::string::npos);
    } else {
      CHECK(notes.find(" is now called ") != std::string::npos);
    }
  }
}

TEST_CASE("old names reach the new keys", "[config]") {
  Config c = parse_config(
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
  CHECK(notes_of(c).find("compile.enable: no meaning here: ") != std::string::npos);
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
  CHECK(message("activation_checkpoint.mode", "memory_budget")
            .find("memory_budget is refused: it is not built yet") != std::string::npos);
  CHECK(message("optimizer.name", "Adam").find("Adam is refused: ") != std::string::npos);
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
    CHECK((parse_config(print_config(c), "printed.yaml") == c));
    return c;
  };
  Config small = load_file("small.toml");
  CHECK(small.model.flavor == "debugmodel");
  CHECK(small.lr_scheduler.decay_ratio == 0.6);
  CHECK(small.training.steps == 12);
  CHECK_FALSE(small.checkpoint.last_save_model_only);
  CHECK(small.activation_checkpoint.every_nth_block() == 3);
  CHECK_FALSE(small.model.uses_float8());
  CHECK(notes_of(small).find("FP8 is off, since model.converters does not hold quantize.linear.float8") !=
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
  CHECK(notes_of(large).find("compile.enable: no meaning here: ") != std::string::npos);
}
