#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ops/attention/attention_kernels.h"
#include "core/round_up.h"

// How attention is cut into tiles on the CPU. A tile is `queries` positions of all heads that share a key
// head, stacked as rows, against `keys` keys. tile_products.h multiplies them.
namespace ottava::cpu {

/// The sizes of a call's tiles, and what multiplies them.
struct AttentionTiling {
  /// What multiplies: our own kernels in f32, oneDNN's primitives in bf16, or our own kernels on pairs of
  /// bf16 terms.
  enum class Multiplier { panels, onednn, pairs };

  AttentionTiling(Bf16Products products, DType dtype, AttentionHeads heads, int64_t batch, int64_t sequence,
                  const SeparateKeys& apart);

  DType dtype;  ///< of the tensors
  Multiplier multiplier;
  DType tile;  ///< of the products' operands
  AttentionHeads heads;
  int64_t batch, sequence;
  int64_t first_query;         ///< position of the first query
  int64_t key_sequence;        ///< positions of a sequence that have keys
  int64_t first_kv, kv_heads;  ///< those of the call
  int64_t group;               ///< heads that share a key head
  int64_t queries;             ///< positions of a whole tile; its rows are group * queries
  int64_t keys;                ///< of a whole tile
  int64_t lanes;               ///< threads

  int64_t query_tiles() const { return pieces_of(sequence, queries); }
  int64_t end_of_keys() const { return first_query + sequence; }
  int64_t key_tiles() const { return pieces_of(end_of_keys(), keys); }
  int64_t pairs() const { return batch * kv_heads; }
  /// Pairs that one thread takes one after the other, because their rows share lines of the caches; 1 where
  /// threads would lack work.
  int64_t pairs_together() const;
  int64_t tile_rows() const { return group * queries; }
  int64_t tile_bytes(int64_t elements) const { return elements * size_of(tile); }
  /// Distance between rows of scores.
  static int64_t stride_of(int64_t keys) { return (keys + 31) / 32 * 32; }
  int64_t largest_stride() const { return stride_of(std::min(keys, end_of_keys())); }
  /// Stride and number of elements of the transposed sums of all keys of a tile.
  int64_t column_stride() const { return stride_of(keys); }
  int64_t column_elements() const { return heads.head_dim * column_stride(); }
};

/// Where a call's keys and values lie; rows count positions of all sequences.
struct KeyRows {
  KeyRows(const AttentionTiling& t, const Tensor& qkv, const SeparateKeys& apart)
      : tensor(apart.empty() ? qkv : apart.values),
        stride(tensor.cols()),
        first_column(apart.empty() ? t.heads.heads * t.heads.head_dim : 0),
        between(t.kv_heads * t.heads.head_dim) {}
  int64_t key_column(int64_t kv, int64_t d) const { return first_column + kv * d; }
  int64_t value_column(int64_t kv, int64_t d) const { return key_column(kv, d) + between; }

  const Tensor& tensor;
  int64_t stride, first_column;
  int64_t between;  ///< a head's key and its value
};

/// Offsets of the parts of a block of memory, each 64-byte aligned.
class Parts {
 public:
  int64_t take(int64_t bytes) {
    int64_t at = bytes_;
    bytes_ += round_up(bytes, 64);
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

/// The first key that any of these queries sees: the earliest start of their documents; 0 without documents.
inline int64_t first_visible_key(const int32_t* document_start, int64_t queries) {
  return document_start ? *std::min_element(document_start, document_start + queries) : 0;
}

/// Address of an element of a tensor of f32 or bf16.
inline char* element(const Tensor& tensor, int64_t index) { return tensor.at(index); }

/// Checks size and alignment of the workspace and returns its address. Throws MemoryError.
char* attention_workspace(std::string_view op, const Tensor& workspace, int64_t bytes);

/// Bytes of attention_forward's and attention_backward's workspace with the pass's products.
class TileProducts;
int64_t forward_workspace_bytes(const AttentionTiling& tiling, const TileProducts& products);
int64_t backward_workspace_bytes(const AttentionTiling& tiling, const TileProducts& products);

}  // namespace ottava::cpu
