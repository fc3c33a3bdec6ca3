#pragma once

#include <compare>
#include <optional>
#include <string>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// How frequencies are scaled for longer sequences: as in Llama 3.1, all of them by one factor, or by YaRN
/// (arXiv:2309.00071). The names are those of `rope_scaling` in Hugging Face's config.json, the arithmetic
/// that of transformers 5 (modeling_rope_utils.py). Members of other types keep their defaults.
struct RopeScaling {
  enum class Type { llama3, linear, yarn };
  Type type = Type::llama3;
  double factor = 8;
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double original_max_position_embeddings = 8192;    ///< llama3, yarn
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  std::optional<double> attention_factor;            ///< yarn; empty: of the next two, by the factor
  /// yarn: (1 + mscale ln(factor) / 10) / (1 + mscale_all_dim ln(factor) / 10); both 0: 1 + ln(factor) / 10.
  double mscale = 0, mscale_all_dim = 0;
  bool truncate = true;  ///< yarn: the ramp begins and ends at whole pairs
  bool operator==(const RopeScaling&) const = default;
};

/// What cosines and sines are multiplied by: 1 unless it is YaRN.
double attention_factor_of(const RopeScaling& scaling);

/// Why no table can be made with a scaling, or nothing: "beta_fast is 1, expected at least beta_slow 2".
std::string what_is_wrong(const RopeScaling& scaling, double theta);

/// cos and sin of position * f_i for i in [0, D/2), with f_i = theta^(-2i/D), scaled if `scaling` is given.
/// table f32 [positions, D], in each row first the cosines, then the sines. Computed in double on the host.
/// Throws ConfigError for an odd D, a theta that is not positive or a scaling that makes no sense.
void fill_rope_table(float* table, int64_t positions, int64_t head_dim, double theta,
                     const std::optional<RopeScaling>& scaling);

/// The query, key and value heads in one row of a fused projection: [H*D | H_kv*D | H_kv*D].
struct AttentionHeads {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t row() const { return (heads + 2 * kv_heads) * head_dim; }
  auto operator<=>(const AttentionHeads&) const = default;
};

/// Rotates the query and key heads of qkv [N, row()] in place (rotate-half layout, f32 arithmetic):
///     (a, b) -> (a cos - b sin, b cos + a sin)   with a = x[i], b = x[i + D/2]
/// `inverse` rotates the other way: the backward pass, since a factor of the table stays. Row n has position
/// positions[n] if positions (i32 [N]) are given, else n % T. Throws ShapeError.
struct Rope {
  Tensor qkv, table;
  Tensor positions;  ///< may be left out
  AttentionHeads heads;
  int64_t sequence = 0;  ///< T
  bool inverse = false;
  /// May be left out: u32 [1], raised to the bits of max |qkv| as stored. This includes the value heads,
  /// which are read only for it.
  Tensor amax;
};
void rope(Stream& stream, const Rope& args);

}  // namespace ottava
