#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "parallel/checkpoint/contents.h"

namespace ottava::checkpoint {

/// One tensor of a checkpoint and where it lies.
struct StoredTensor {
  SafetensorsEntry entry;        ///< HF name of a weight, stored_name() of a moment
  std::optional<Moment> moment;  ///< none: the weight
  int spec = 0, part = 0;        ///< ParameterSpec and ParameterPart it comes from
  int file = 0;                  ///< index into Layout::files
};

struct StoredFile {
  std::string name;
  std::string header;  ///< the bytes that the file begins with
  int64_t bytes = 0;   ///< header and data
  int64_t data_begin() const { return static_cast<int64_t>(header.size()); }
};

/// Files, headers and offsets of a checkpoint. They follow from the arguments of plan_layout() alone, so
/// every rank computes the same ones without asking another.
struct Layout {
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  ///< in order of files and offsets
  std::vector<TextFile> indexes;      ///< model.safetensors.index.json, and the optimizer's
};

struct LayoutOptions {
  DType weight = DType::f32;  ///< stored type; bf16 and f16 are for exports
  bool with_optimizer = true;
  PerMoment<DType> moments = {};  ///< f32 unless set
  /// A file takes whole tensors until the next would exceed this size; a single tensor may exceed it.
  int64_t max_file_bytes = 5'000'000'000;
};

/// Throws ConfigError if two parameters have the same HF name.
Layout plan_layout(std::span<const ParameterSpec> specs, const LayoutOptions& options);

/// "model.norm.weight.exp_avg": a moment of the weight with this HF name.
std::string stored_name(const std::string& hf_name, const MomentTraits& moment);

/// The options under which these parameters are saved as they are.
LayoutOptions layout_options_of(const TrainedParameters& parameters);

}  // namespace ottava::checkpoint
