#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/chat_config.h"
#include "apps/config/checkpoint_config.h"
#include "apps/config/debug_config.h"
#include "apps/config/evaluation_config.h"
#include "apps/config/job_config.h"
#include "apps/config/profiling_config.h"
#include "apps/config/training_config.h"
#include "apps/config/validation_config.h"
#include "core/config/problems.h"
#include "core/cpu/cpu_config.h"
#include "core/metrics/metrics_config.h"
#include "core/optim/optimizer_config.h"
#include "fp8/float8_config.h"
#include "models/activation_checkpoint_config.h"
#include "models/attention_config.h"
#include "models/model_config.h"
#include "parallel/comm/comm_config.h"
#include "parallel/sharding/parallelism_config.h"

namespace ottava {

/// One experiment, resolved: file, then command line, over defaults.
struct Config {
  JobConfig job;
  ModelConfig model;
  TrainingConfig training;
  ChatConfig chat;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  ParallelismConfig parallelism;
  CheckpointConfig checkpoint;
  ActivationCheckpointConfig activation_checkpoint;
  AttentionConfig attention;
  CpuConfig cpu;
  Float8Config float8;  ///< section quantize.linear.float8
  MetricsConfig metrics;
  ProfilingConfig profiling;
  ValidationConfig validation;
  EvaluationConfig evaluation;
  CommConfig comm;
  DebugConfig debug;

  /// Where the settings came from. It does not take part in comparisons.
  struct Provenance {
    std::filesystem::path file;         ///< empty when there was none
    config::Origins origins;            ///< keys that were set
    std::vector<std::string> notes;     ///< of keys that are renamed or have no effect; rank 0 logs them once
    std::vector<std::string> warnings;  ///< likewise, for settings that were probably not meant
    bool operator==(const Provenance&) const { return true; }
  } provenance;

  /// Whether a run computes losses of sequences of validation.seq_len: those of validation, or of answers.
  bool validates() const { return validation.enable || evaluation.scores(); }
  bool operator==(const Config&) const = default;
};

/// Reads here_or_installed(`path`) (.yaml, .yml, .toml; empty: only defaults) and `overrides`
/// ("--section.key", "value", ...), fills in what follows from training.mixed_precision_level and
/// from conversations as data (model.attn_mask_type), and checks keys and combinations. Throws FileError if
/// the file cannot be read, and one ConfigError with a line per problem. Opens no other file; paths in it are
/// not looked at.
Config load_config(const std::filesystem::path& path, const std::vector<std::string>& overrides = {});

/// Its notes and warnings, one a line, for commands that have no log.
std::string notes_text(const Config& config);

/// Checks what training needs but a configuration that is only planned may lack: training.dataset_path (and
/// validation's if enabled), and files that exist. Throws one ConfigError with a line per problem.
void require_inputs(const Config& config);

/// Where an input is. Paths in a configuration are relative to the working directory, as in TorchTitan.
/// Inputs (files, folders, globs, @lists), but not outputs, that are not there are looked for beside the
/// configuration file and then in installed_folder(), in three attempts. Throws FileError that names places.
std::filesystem::path find_input(const Config& config, std::string_view key, const std::string& path);
/// The folder of model.hf_assets_path, found in the same way. Throws FileError also if it is a file.
std::filesystem::path find_assets(const Config& config);
/// Whether model.hf_assets_path exists, as a folder or not. Throws FileError if the system cannot tell.
bool has_assets(const Config& config);

/// The resolved tree as YAML; loading it gives an equal Config. With `comments`, each key is explained.
std::string print_config(const Config& config, bool comments = false);
/// JSON Schema (draft 7) for editors.
std::string config_schema();
/// A Markdown table of every key, those that only other trainers have included, and what becomes of it.
std::string config_fates();

}  // namespace ottava
