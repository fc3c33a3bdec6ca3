#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/cpu/matmul_cache.h"
#include "core/ops/attention/attention.h"

// How attention is cut into tiles on the CPU. A tile is `queries` positions of all heads that share a key
// head, stacked as rows, against `keys` keys. All five products of a tile are oneDNN primitives for one
// thread on packed operands: only these reach AMX, and packed f32 ones are 30% faster than strided.
namespace ottava::cpu {

struct AttentionTiling {
  AttentionTiling(DType dtype, AttentionHeads heads, int64_t batch, int64_t sequence);

  DType dtype;  ///< of the tensors
  DType tile;   ///< of the products' operands
  AttentionHeads heads;
  int64_t batch, sequence;
  int64_t group;    ///< heads that share a key head
  int64_t queries;  ///< positions of a whole tile; its rows are group * queries
  int64_t keys;     ///< of a whole tile
  int64_t lanes;    ///< threads

  int64_t query_tiles() const { return (sequence + queries - 1) / queries; }
  int64_t key_tiles() const { return (sequence + keys - 1) / keys; }
  int64_t pairs() const { return batch * heads.kv_heads; }
  int64_t tile_rows() const { return group * queries; }
  int64_t tile_bytes(int64_t elements) const { return elements * static_cast<int64_t>(size_of(tile)); }
  /// Distance between rows of scores, and how many there may be at most.
  static int64_t stride_of(int64_t keys) { return (keys + 31) / 32 * 32; }
  int64_t score_elements() const { return tile_rows() * stride_of(std::min(keys, sequence)); }
};

/// The products of a tile with `queries` positions and `keys` keys; operands packed [rows, head_dim], scores
/// and probabilities [rows, stride].
struct TileProducts {
  int64_t queries = 0, keys = 0;
  const Gemm* scores = nullptr;   ///< [rows, keys] = [rows, D] [keys, D]^T:  S = Q K^T, dP = dO V^T
  const Gemm* rows = nullptr;     ///< [rows, D] += [rows, keys] [keys, D]:   O += P V, dQ += dS K
  const Gemm* columns = nullptr;  ///< [keys, D] += [rows, keys]^T [rows, D]: dV += P^T dO, dK += dS^T Q
};

/// The products of every tile shape that occurs, made before the threads start.
class TileGemms {
 public:
  TileGemms(MatmulCache& cache, const AttentionTiling& tiling, Pass pass);
  const TileProducts& at(int64_t queries, int64_t keys) const;
  /// Scratch of one lane; the second function asks without making primitives.
  int64_t scratch_bytes() const { return scratch_bytes_; }
  static int64_t scratch_bytes(const AttentionTiling& tiling, Pass pass);

 private:
  std::vector<TileProducts> shapes_;
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

/// The first of the documents that positions [begin, end) belong to starts here; 0 without documents.
inline int64_t first_visible_key(const int32_t* document_start, int64_t begin, int64_t end) {
  return document_start ? *std::min_element(document_start + begin, document_start + end) : 0;
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
