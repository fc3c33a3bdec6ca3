#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/cpu/matmul_cache.h"
#include "core/ops/attention/attention_kernels.h"
#include "core/ops/attention/tiles/attention_tiles.h"

namespace ottava::cpu {

/// What an operand is packed for.
enum class Operand {
  left,        ///< queries and dO, for the scores and dprobabilities
  transposed,  ///< keys and values, for the same
  right,       ///< values, for the sums; keys, for dQ
  summed,      ///< dO and queries, for dV and dK; rows of several heads lie one after the other
};

/// What a part of a tile is made of, as packed.
struct PartOperands {
  const char *q = nullptr, *dout = nullptr;  ///< left; the part's first row
  const char *k = nullptr, *v = nullptr;     ///< transposed
  const char* right = nullptr;               ///< values, in backward keys
  int64_t all_keys = 0;                      ///< rows that were packed into it
};

/// What one thread does with a tile, on packed operands: the products, and softmax or its gradient between
/// them. Parts go through all of it while they are in the caches.
class TileProducts {
 public:
  /// Made before the threads start. Without a cache it can only be asked for sizes.
  static std::unique_ptr<const TileProducts> make(const AttentionTiling& tiling, Pass pass,
                                                  MatmulCache* cache);
  virtual ~TileProducts() = default;

  /// Held by a thread while it multiplies.
  class Use {
   public:
    explicit Use(const TileProducts& products) : products_(products) { products_.begin_thread(); }
    Use(const Use&) = delete;
    ~Use() { products_.end_thread(); }

   private:
    const TileProducts& products_;
  };

  /// Bytes of `count` rows of an operand.
  virtual int64_t packed_bytes(Operand operand, int64_t count) const = 0;
  /// `count` rows of [.., D] in the tensors' type, `stride` elements apart; the operand's rows.
  virtual void pack(Operand operand, const void* from, int64_t stride, int64_t count, char* to) const = 0;
  /// True if one packing of rows serves as both.
  virtual bool packs_alike(Operand one, Operand other) const = 0;
  /// Rows that a head of so many queries takes in operands.
  int64_t packed_rows(int64_t queries) const {
    return pads_parts_ ? parts_of(queries) * part_rows_ : queries;
  }

  /// Of a tile's scores, and of probabilities and dscores, which are the tile's operands' type and where that
  /// is f32 take the place of the scores.
  int64_t score_elements() const { return keeps_scores_ ? t_.tile_rows() * t_.largest_stride() : 0; }
  int64_t summed_elements() const { return t_.group * packed_rows(t_.queries) * t_.largest_stride(); }
  bool in_place() const { return t_.tile == DType::f32; }

  /// A part of a tile: `tile` of its rows from `row` on, which is `packed_row` in operands.
  struct Part {
    ScoreTile tile;
    int64_t row, packed_row;
  };
  /// Calls body(part) for parts that see a key. A part is of one head, and has the keys that its last query
  /// sees; the scores of a tile of few queries are the tile's. Where oneDNN multiplies, it is the tile.
  template <class Body>
  void for_each_part(const ScoreTile& tile, Body&& body) const;

  /// S = Q K^T, a step of the softmax, sums += P V.
  virtual void attend(int lane, const SoftmaxTile& tile, const PartOperands& operands,
                      void* scratch) const = 0;
  /// S = Q K^T, dP = dO V^T, probabilities and dscores as columns() reads them, dq [rows, D] += dS K.
  virtual void differentiate(int lane, const GradientTile& tile, const PartOperands& operands, float* dq,
                             void* scratch) const = 0;
  /// c += p^T [keys, rows] b of a whole tile:  dV += P^T dO, dK += dS^T Q. c has column_elements; oneDNN's is
  /// [keys, D], ours [D, column_stride], since a row of p is then read as vectors of keys.
  virtual void columns(int lane, const ScoreTile& tile, const void* p, const char* b, float* c,
                       void* scratch) const = 0;
  /// c as [keys, D]: itself, or written to `to`.
  virtual const float* rows_of_columns(const float* c, int64_t keys, float* to) const;

  /// Scratch of one lane.
  int64_t scratch_bytes() const { return scratch_bytes_; }

 protected:
  explicit TileProducts(const AttentionTiling& tiling) : t_(tiling), kernels_(attention_kernels()) {}
  virtual void begin_thread() const {}
  virtual void end_thread() const {}

  const AttentionTiling t_;
  const AttentionKernels& kernels_;
  int64_t scratch_bytes_ = 0;
  int64_t part_rows_ = 0;    ///< at most; 0: the tile is the part
  bool pads_parts_ = false;  ///< they begin at multiples of part_rows_, and operands have zeros up to there
  bool keeps_scores_ = true;

 private:
  int64_t parts_of(int64_t queries) const { return (queries + part_rows_ - 1) / part_rows_; }
};

template <class Body>
void TileProducts::for_each_part(const ScoreTile& tile, Body&& body) const {
  if (part_rows_ == 0) return body(Part{tile, 0, 0});
  const int64_t parts = parts_of(tile.queries), heads = tile.rows / tile.queries;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t query = pads_parts_ ? i * part_rows_ : tile.queries * i / parts;
      const int64_t end =
          pads_parts_ ? std::min(query + part_rows_, tile.queries) : tile.queries * (i + 1) / parts;
      Part part{tile, head * tile.queries + query, head * packed_rows(tile.queries) + query};
      part.tile.rows = part.tile.queries = end - query;
      part.tile.first_query += query;
      part.tile.keys = std::min(tile.keys, tile.first_query + end - tile.first_key);
      if (part.tile.document_start) part.tile.document_start += query;
      if (part.tile.keys > 0) body(part);
    }
  }
}

/// The same as products by themselves, with the scores between them.
class StepwiseProducts : public TileProducts {
 public:
  void attend(int lane, const SoftmaxTile& tile, const PartOperands& operands, void* scratch) const override;
  void differentiate(int lane, const GradientTile& tile, const PartOperands& operands, float* dq,
                     void* scratch) const override;

 protected:
  using TileProducts::TileProducts;
  /// scores [rows, stride] = a b^T
  virtual void scores(int lane, const ScoreTile& tile, const char* a, const char* b, float* scores,
                      void* scratch) const = 0;
  /// c [rows, D] += p [rows, keys] b, of which `all` rows were packed.
  virtual void rows(int lane, const ScoreTile& tile, const void* p, const char* b, int64_t all, float* c,
                    void* scratch) const = 0;
};

}  // namespace ottava::cpu
