#pragma once

#include <compare>
#include <optional>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// Frequency scaling of Llama 3.1; the names are those of `rope_scaling` in Hugging Face's config.json.
struct RopeScaling {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
  bool operator==(const RopeScaling&) const = default;
};

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
/// `inverse` rotates the other way: the backward pass. Row n has position positions[n] if positions (i32 [N])
/// are given, else n % T. Throws ShapeError.
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
