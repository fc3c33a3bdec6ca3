#pragma once

#include <compare>
#include <optional>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// Frequency scaling of Llama 3.1 (numerics: "RoPE").
struct RopeScaling {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
  bool operator==(const RopeScaling&) const = default;
};

/// cos and sin of position * f_i for i in [0, D/2): table f32 [positions, D], first half cos, second half
/// sin, computed in double on the host. f_i = theta^(-2i/D), scaled if asked.
void fill_rope_table(float* table, int64_t positions, int64_t head_dim, double theta,
                     const std::optional<RopeScaling>& scaling);

/// How query, key and value heads lie in one row of a fused projection: [H*D | H_kv*D | H_kv*D].
struct AttentionHeads {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t row() const { return (heads + 2 * kv_heads) * head_dim; }
  auto operator<=>(const AttentionHeads&) const = default;
};

/// Rotates the query and key heads of qkv [N, row()] in place (rotate-half layout, f32 arithmetic):
///     (a, b) -> (a cos - b sin, b cos + a sin)   with a = x[i], b = x[i + D/2]
/// `inverse` turns the other way: the backward pass. Row n has position positions[n] if given (i32 [N]), else
/// n % T.
struct Rope {
  Tensor qkv, table;
  Tensor positions;  ///< may be left out
  AttentionHeads heads;
  int64_t sequence = 0;  ///< T
  bool inverse = false;
  /// May be left out: u32 [1], raised to the bits of max |qkv| as stored, the value heads included: they are
  /// read for it.
  Tensor amax;
};
void rope(Stream& stream, const Rope& args);

}  // namespace ottava
