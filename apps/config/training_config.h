#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/limits.h"
#include "apps/config/mixture_config.h"
#include "core/config/declare.h"
#include "core/dtype.h"

namespace ottava {

/// Sections `training.dataloader` and `validation.dataloader`.
struct DataloaderConfig {
  int64_t num_workers = 0;  ///< 0: one
  std::optional<int64_t> prefetch_factor;
  bool operator==(const DataloaderConfig&) const = default;
};

/// Section `training.skip_spikes`; the rule is in core/optim/spike.h.
struct SkipSpikesConfig {
  int64_t window = 128;
  double sigma = 0;
  bool operator==(const SkipSpikesConfig&) const = default;
};

/// Section `training`. What keys mean: training_config.cpp.
struct TrainingConfig {
  std::string dataset = "c4_test";
  std::vector<std::string> dataset_path;     ///< files, folders, globs, @lists: core/data/data_file.h
  std::vector<MixtureSourceConfig> mixture;  ///< in place of dataset_path
  std::vector<MixtureStageConfig> mixture_stages;
  std::string text_key = "text";
  std::string format = "auto";  ///< of files that name none: data::format_named()
  enum class BadRecords { error, skip };
  BadRecords bad_records = BadRecords::error;
  double data_check_seconds = 1;  ///< spent on looking through the data before the first step
  bool add_bos = true, add_eos = true;
  bool shuffle = true;

  int64_t local_batch_size = 8;
  int64_t global_batch_size = -1;  ///< -1: local_batch_size x data-parallel ranks
  int64_t seq_len = 2048;
  int64_t steps = 10000;
  std::optional<double> epochs;  ///< in place of steps, which the trainer then computes
  double max_norm = 1.0;
  double z_loss_weight = 0;

  DType dtype = DType::f32;
  DType mixed_precision_param = DType::bf16;
  DType mixed_precision_reduce = DType::f32;
  std::string mixed_precision_level;  ///< "", "O0", "O1", "O2"
  std::string loss_scale = "none";    ///< "none", "dynamic" or a number
  int64_t max_consecutive_skipped_steps = 10;
  SkipSpikesConfig skip_spikes;

  std::string device = "auto";
  enum class CudaGraphs : uint8_t { automatic, on, off };
  CudaGraphs cuda_graphs = CudaGraphs::automatic;
  std::string gemm_cache = "auto";
  int64_t threads = 0;  ///< per rank; 0: chosen
  int64_t seed = 0;
  DataloaderConfig dataloader;
  bool operator==(const TrainingConfig&) const = default;

  /// The constant of `loss_scale`; 1 for "none", nothing for "dynamic".
  std::optional<double> constant_loss_scale() const;
};

void declare(config::Section& s, DataloaderConfig& c);
void declare(config::Section& s, SkipSpikesConfig& c);
void declare(config::Section& s, TrainingConfig& c);
void validate(const TrainingConfig& c, config::Problems& problems);

}  // namespace ottava
