#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/cpu/matmul_cache.h"
#include "core/ops/attention/attention_kernels.h"

// How attention is cut into tiles on the CPU. A tile is `queries` positions of all heads that share a key
// head, stacked as rows, against `keys` keys. All five products of a tile are for one thread and on
// packed operands.
namespace ottava::cpu {

struct AttentionTiling {
  AttentionTiling(Bf16Products products, DType dtype, AttentionHeads heads, int64_t batch, int64_t sequence,
                  const SeparateKeys& apart);

  DType dtype;  ///< of the tensors
  DType tile;   ///< of the products' operands
  AttentionHeads heads;
  int64_t batch, sequence;
  int64_t first_query;         ///< position of the first query
  int64_t key_sequence;        ///< positions of a sequence that have keys
  int64_t first_kv, kv_heads;  ///< those of the call
  int64_t group;               ///< heads that share a key head
  int64_t queries;             ///< positions of a whole tile; its rows are group * queries
  int64_t keys;                ///< of a whole tile
  int64_t lanes;               ///< threads

  int64_t query_tiles() const { return (sequence + queries - 1) / queries; }
  int64_t end_of_keys() const { return first_query + sequence; }
  int64_t key_tiles() const { return (end_of_keys() + keys - 1) / keys; }
  int64_t pairs() const { return batch * kv_heads; }
  int64_t tile_rows() const { return group * queries; }
  int64_t tile_bytes(int64_t elements) const { return elements * size_of(tile); }
  /// Distance between rows of scores, and how many there may be at most.
  static int64_t stride_of(int64_t keys) { return (keys + 31) / 32 * 32; }
  /// Of the transposed sums of all keys of a tile.
  int64_t column_stride() const { return stride_of(keys); }
  int64_t column_elements() const { return heads.head_dim * column_stride(); }
  int64_t score_elements() const { return tile_rows() * stride_of(std::min(keys, end_of_keys())); }
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

/// What an operand is packed for. oneDNN's products take all three alike, so that one packing serves.
enum class Operand {
  left,        ///< A of scores, b of columns; rows lie one after the other
  transposed,  ///< B of scores
  right,       ///< B of rows
};

/// The five products of a tile or of a part of it: oneDNN's for one thread where operands are bf16, else
/// those of core/cpu/panel_product.h, which leave out what the diagonal hides. Made before the threads start.
class TileProducts {
 public:
  TileProducts(MatmulCache& cache, const AttentionTiling& tiling, Pass pass);

  /// True if one packing serves as every operand.
  static bool packs_alike(const AttentionTiling& t) { return t.tile == DType::bf16; }
  /// Bytes of `count` rows of an operand.
  static int64_t packed_bytes(const AttentionTiling& t, Operand operand, int64_t count);
  /// `count` rows of [.., D] in the tensors' type, `stride` elements apart; the operand's rows.
  void pack(Operand operand, const void* from, int64_t stride, int64_t count, char* to) const;

  /// Rows of a part at most: their scores stay in the L1 cache.
  static constexpr int64_t kPartRows = 14;
  /// Calls body(part, row) for parts of the tile, which begin at its `row` and have the keys that their last
  /// query sees; those that see none are left out. A part is of one head, a tile of few queries whose scores
  /// are the tile's; where oneDNN multiplies, it is the tile.
  template <class Body>
  void for_each_part(const ScoreTile& tile, Body&& body) const;

  /// Bounds of a tile in the products: `all` rows were packed into the right operand, from which the product
  /// takes as many as it has terms.
  /// scores [rows, stride] = a b^T:  S = Q K^T, dP = dO V^T
  void scores(int lane, const ScoreTile& tile, const char* a, const char* b, float* scores,
              void* scratch) const;
  /// c [rows, D] += p [rows, keys] b:  O += P V, dQ += dS K
  void rows(int lane, const ScoreTile& tile, const void* p, const char* b, int64_t all, float* c,
            void* scratch) const;
  /// c += p^T [keys, rows] b:  dV += P^T dO, dK += dS^T Q. c has column_elements; oneDNN's is [keys, D], ours
  /// [D, column_stride], since a row of p is then read as vectors of keys.
  void columns(int lane, const ScoreTile& tile, const void* p, const char* b, float* c, void* scratch) const;
  /// c as [keys, D]: itself, or written to `to`.
  const float* rows_of_columns(const float* c, int64_t keys, float* to) const;

  /// Scratch of one lane; the second function asks without making primitives.
  int64_t scratch_bytes() const { return scratch_bytes_; }
  static int64_t scratch_bytes(const AttentionTiling& tiling, Pass pass);

 private:
  struct Direct {
    int64_t queries = 0, keys = 0;
    const Gemm *scores = nullptr, *rows = nullptr, *columns = nullptr;
  };
  const Direct& at(const ScoreTile& tile) const;

  AttentionTiling t_;
  const AttentionKernels& kernels_;
  std::vector<Direct> direct_;
  int64_t scratch_bytes_ = 0;
};

template <class Body>
void TileProducts::for_each_part(const ScoreTile& tile, Body&& body) const {
  if (packs_alike(t_)) return body(tile, int64_t{0});
  const int64_t parts = (tile.queries + kPartRows - 1) / kPartRows;
  for (int64_t head = 0; head < tile.rows; head += tile.queries) {
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t query = tile.queries * i / parts, end = tile.queries * (i + 1) / parts;
      ScoreTile part = tile;
      part.rows = part.queries = end - query;
      part.first_query += query;
      part.keys = std::min(tile.keys, tile.first_query + end - tile.first_key);
      if (part.document_start) part.document_start += query;
      if (part.keys > 0) body(part, head + query);
    }
  }
}

/// Offsets of the parts of a block of memory, each 64-byte aligned.
class Parts {
 public:
  int64_t take(int64_t bytes) {
    int64_t at = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

/// The first of the documents that the queries from this one on belong to starts here; 0 without documents.
inline int64_t first_visible_key(const int32_t* document_start, int64_t queries) {
  return document_start ? *std::min_element(document_start, document_start + queries) : 0;
}

/// Address of an element of a tensor of f32 or bf16.
inline char* element(const Tensor& tensor, int64_t index) { return tensor.at(index); }

/// The workspace's address after a check of size and alignment. Throws MemoryError.
char* attention_workspace(std::string_view op, const Tensor& workspace, int64_t bytes);

/// Bytes of attention_forward's and attention_backward's workspace for a given scratch of the products.
int64_t forward_workspace_bytes(const AttentionTiling& tiling, int64_t scratch_bytes);
int64_t backward_workspace_bytes(const AttentionTiling& tiling, int64_t scratch_bytes);

}  // namespace ottava::cpu
