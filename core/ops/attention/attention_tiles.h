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
  int64_t tile_bytes(int64_t elements) const { return elements * static_cast<int64_t>(size_of(tile)); }
  /// Distance between rows of scores, and how many there may be at most.
  static int64_t stride_of(int64_t keys) { return (keys + 31) / 32 * 32; }
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
  left,        ///< A of scores
  transposed,  ///< B of scores
  right,       ///< B of rows and columns
};

/// The five products of a tile: oneDNN's for one thread where operands are bf16, else those of
/// core/cpu/panel_product.h, which leave out what the diagonal hides. Made before the threads start.
class TileProducts {
 public:
  TileProducts(MatmulCache& cache, const AttentionTiling& tiling, Pass pass);

  /// True if one packing serves as every operand.
  static bool packs_alike(const AttentionTiling& t) { return t.tile == DType::bf16; }
  /// Bytes of `count` rows of an operand.
  static int64_t packed_bytes(const AttentionTiling& t, Operand operand, int64_t count);
  /// `count` rows of [.., D] in the tensors' type, `stride` elements apart, as the operand's rows from
  /// `first` on, of `all` that it will have. Rows of a transposed operand are packed at once: first is 0.
  void pack(Operand operand, const void* from, int64_t stride, int64_t count, char* to, int64_t first,
            int64_t all) const;

  /// Bounds of a tile in the products: `all` rows were packed into the right operand, from which the product
  /// takes as many as it has terms.
  /// scores [rows, stride] = a b^T:  S = Q K^T, dP = dO V^T
  void scores(int lane, const ScoreTile& tile, const char* a, const char* b, float* scores,
              void* scratch) const;
  /// c [rows, D] += p [rows, keys] b:  O += P V, dQ += dS K
  void rows(int lane, const ScoreTile& tile, const void* p, const char* b, int64_t all, float* c,
            void* scratch) const;
  /// c [keys, D] += p^T [keys, rows] b:  dV += P^T dO, dK += dS^T Q
  void columns(int lane, const ScoreTile& tile, const void* p, const char* b, float* c, void* scratch) const;

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
inline char* element(const Tensor& tensor, int64_t index) {
  return static_cast<char*>(tensor.data) + index * static_cast<int64_t>(size_of(tensor.dtype));
}

/// The workspace's address after a check of size and alignment. Throws MemoryError.
char* attention_workspace(std::string_view op, const Tensor& workspace, int64_t bytes);

/// Bytes of attention_forward's and attention_backward's workspace for a given scratch of the products.
int64_t forward_workspace_bytes(const AttentionTiling& tiling, int64_t scratch_bytes);
int64_t backward_workspace_bytes(const AttentionTiling& tiling, int64_t scratch_bytes);

}  // namespace ottava::cpu
