#include "apps/config/resolved_model.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "apps/config/limits.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "models/llama/read_hf_config.h"

namespace ottava {
namespace {

// A Hugging Face model says how far its positions go.
void check_positions(const std::string& path, int64_t longest, std::string_view key) {
  const int64_t most = parse_hf_config(read_file(path), path).max_position_embeddings;
  if (longest <= most) return;
  fail<ConfigError>(
      "model",
      "sequences of {} tokens are longer than max_position_embeddings {} in {}: lower {}, or set "
      "model.max_seq_len (and model.rope_scaling) to train on longer sequences",
      longest, most, path, key);
}

// Generation and evaluation know no dropout, so that only training has to refuse it.
void refuse_dropout(const HfConfig& hf, const std::string& path) {
  if (hf.attention_dropout == 0) return;
  fail<FileError>(path,
                  "attention_dropout is {}: dropout, which transformers applies in training, is not "
                  "supported; set it to 0 to train without (nothing else depends on it)",
                  hf.attention_dropout);
}

}  // namespace

std::optional<std::string> source_config_path(const Config& config) {
  if (config.model.flavor != "hf") return std::nullopt;
  const std::filesystem::path folder = find_assets(config), path = folder / "config.json";
  if (!is_there(path.string()))
    fail<FileError>(
        "model",
        "flavor hf takes the model from config.json in model.hf_assets_path, but {} has none: set "
        "it to the folder of a Hugging Face model, or choose another model.flavor",
        folder.string());
  return path.string();
}

LlamaConfig resolved_model(const Config& c, const Tokenizer* tokenizer, std::vector<ModelValue>* values) {
  const int64_t longest = std::max(c.training.seq_len, c.validates() ? c.validation.seq_len : 0);
  const std::string_view key = longest > c.training.seq_len ? "validation.seq_len" : "training.seq_len";
  std::optional<LlamaConfig> base;
  if (const std::optional<std::string> path = source_config_path(c)) {
    const HfConfig hf = parse_hf_config(read_file(*path), *path);
    refuse_dropout(hf, *path);
    base = llama_config_of(hf);
    if (!c.model.max_seq_len) check_positions(*path, longest, key);
  }
  return model_of_section(c.model, base, tokenizer ? tokenizer->vocab_size() : 0, {longest, key}, values);
}

int64_t longest_sequence(const Config& c, const LlamaConfig& model) {
  if (c.model.max_seq_len) return *c.model.max_seq_len;
  if (const std::optional<std::string> path = source_config_path(c))
    return parse_hf_config(read_file(*path), *path).max_position_embeddings;
  // Frequencies that are scaled are made for sequences of up to factor times the original length.
  const std::optional<RopeScaling>& scaling = model.rope_scaling;
  const bool is_known = scaling && scaling->type != RopeScaling::Type::linear;
  const double made_for = is_known ? scaling->factor * scaling->original_max_position_embeddings : 0;
  return std::max(static_cast<int64_t>(std::min<double>(made_for, kMostTokens)), c.training.seq_len);
}

std::vector<std::string> model_lines(const Config& config, const std::vector<ModelValue>& values) {
  const config::Origins& origins = config.provenance.origins;
  auto where_set = [&](const std::string& key) -> std::string {
    // A section counts as set where its first key is.
    const auto at = origins.lower_bound(key);
    return at != origins.end() && at->first.starts_with(key) ? config::to_string(at->second)
                                                             : "the configuration";
  };
  std::vector<std::string> lines;
  for (const ModelValue& v : values) {
    lines.push_back(fmt::format("{:<15} {:<10} {}", v.name, v.value,
                                v.origin.empty() ? where_set("model." + v.name) : v.origin));
  }
  return lines;
}

}  // namespace ottava
