#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/rope.h"

namespace ottava {

class Json;

/// The families of Hugging Face models that are supported. Qwen2 has biases on q, k and v; Qwen3 has norms on
/// q and k; Mistral computes what Llama does, on sequences within its window.
enum class HfFamily { llama, qwen2, qwen3, mistral };

/// The part of an HF `config.json` that decides what the model computes. Where a file leaves a value out, it
/// is the default that `transformers` has for the family, except that no token begins or ends a text:
/// LlamaConfig has 1 and 2, but generate() goes by what the file says.
struct HfConfig {
  HfFamily family = HfFamily::llama;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;  ///< empty for rope type "default"
  bool tie_word_embeddings = false;
  std::optional<int64_t> sliding_window;  ///< only of Mistral: how many tokens a token sees, itself included
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  std::string dtype = "float32";  ///< of the stored weights: "float32", "bfloat16", "float16"
  double attention_dropout = 0;   ///< only in training, which refuses it
  bool operator==(const HfConfig&) const = default;
};

/// Reads the text of a config.json: both the older form (rope_theta, rope_scaling, torch_dtype) and the newer
/// one (rope_parameters, dtype); rope_theta may be inside of rope_scaling too. Throws FileError that begins
/// with `where` for malformed text, and for every setting that would change the mathematics and is not
/// supported (another family, rope type, activation, biases, sliding windows of Qwen, quantized weights, RoPE
/// settings that are not known). No such setting is ignored. A null counts as left out where `transformers`
/// takes it so, and is refused where it does not.
HfConfig parse_hf_config(std::string_view text, std::string_view where);

/// The text of a config.json that `transformers` reads, in the older form, which all its versions know.
std::string to_json(const HfConfig& config);

/// The text of a config.json, changed where it differs from another configuration and otherwise kept, unknown
/// members included.
struct HfConfigEdit {
  std::string json;
  std::vector<std::string> changes;  ///< "rope_theta 10000 -> 500000"
};
/// `source` with the values of `now`. Throws FileError as parse_hf_config() does.
HfConfigEdit edit_hf_config(std::string_view source, std::string_view where, const HfConfig& now);

/// What two configurations compute differently: "rope_theta 10000 and 500000". Lengths, windows (no sequence
/// is longer), tokens and the dtype of stored weights do not count.
std::vector<std::string> differences(const HfConfig& a, const HfConfig& b);

/// "eos_token_id" of a config.json or generation_config.json: a number, a list of them, or none. Throws
/// FileError naming `where`.
std::vector<int64_t> eos_token_ids(const Json& object, std::string_view where);

}  // namespace ottava
