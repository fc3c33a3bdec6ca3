#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/cpu/matmul_cache.h"
#include "core/cpu/no_subnormals.h"
#include "core/ops/attention/attention_kernels.h"
#include "core/ops/attention/tiles/attention_tiles.h"
#include "core/round_up.h"

namespace ottava::cpu {

/// What an operand is packed for.
enum class Operand {
  left,        ///< queries and dO, for the scores and dprobabilities
  transposed,  ///< keys and values, for the same
  right,       ///< values, for the sums; keys, for dQ
  summed,      ///< dO and queries, for dV and dK; the rows of several heads follow each other
};

/// The packed operands of a part of a tile.
struct PartOperands {
  const char *q = nullptr, *dout = nullptr;  ///< left; the part's first row
  const char *k = nullptr, *v = nullptr;     ///< transposed
  const char* right = nullptr;               ///< values, in backward keys
  int64_t all_keys = 0;                      ///< rows that were packed into it
};

/// What one thread does with a tile, on packed operands: the products, with softmax or its gradient between
/// them. A part goes through all of that while it is in the caches.
class TileProducts {
 public:
  /// To be made before the threads start. Without a cache, it can only be asked for sizes.
  static std::unique_ptr<const TileProducts> make(const AttentionTiling& tiling, Pass pass,
                                                  MatmulCache* cache);
  virtual ~TileProducts() = default;

  /// Held by a thread while it multiplies. With bf16 tensors, whose exponentials may be subnormal, it treats
  /// such numbers as zero meanwhile.
  class Use {
   public:
    explicit Use(const TileProducts& products) : products_(products) {
      if (products_.t_.dtype == DType::bf16) flushed_.emplace();
      products_.begin_thread();
    }
    Use(const Use&) = delete;
    ~Use() { products_.end_thread(); }

   private:
    const TileProducts& products_;
    std::optional<NoSubnormals> flushed_;
  };

  /// Bytes of `count` packed rows of an operand.
  virtual int64_t packed_bytes(Operand operand, int64_t count) const = 0;
  /// Packs `count` rows [.., D] of the tensors' type, `stride` elements apart, as rows of the operand.
  virtual void pack(Operand operand, const void* from, int64_t stride, int64_t count, char* to) const = 0;
  /// True if rows packed once serve as both operands.
  virtual bool packs_alike(Operand one, Operand other) const = 0;
  /// Rows that a head with so many queries takes in packed operands.
  int64_t packed_rows(int64_t queries) const {
    return pads_parts_ ? parts_of(queries) * part_rows_ : queries;
  }

  /// Elements of a tile's scores, and of its probabilities or dscores. The latter have the type of the
  /// operands; if that is f32 (in_place()) they replace the scores.
  int64_t score_elements() const { return keeps_scores_ ? t_.tile_rows() * t_.largest_stride() : 0; }
  int64_t summed_elements() const { return t_.group * packed_rows(t_.queries) * t_.largest_stride(); }
  bool in_place() const { return t_.tile == DType::f32; }

  /// A part of a tile, as a tile of its own. Its first row is `row` of the whole tile and `packed_row` in
  /// packed operands.
  struct Part {
    ScoreTile tile;
    int64_t row, packed_row;
  };
  /// Calls body(part) for each part that sees a key. A part belongs to one head and has the keys that its
  /// last query sees. Where oneDNN multiplies, the part is the whole tile.
  template <class Body>
  void for_each_part(const ScoreTile& tile, Body&& body) const;

  /// S = Q K^T, one step of the softmax, sums += P V.
  virtual void attend(int lane, const SoftmaxTile& tile, const PartOperands& operands,
                      void* scratch) const = 0;
  /// The sums of a head's parts as [rows, D]: the sums themselves, or made of those of transposed parts,
  /// which are written to `to`.
  virtual float* rows_of_sums(float* sums, int64_t, float*) const { return sums; }
  /// S = Q K^T, dP = dO V^T, probabilities and dscores as columns() reads them, dq [rows, D] += dS K.
  virtual void differentiate(int lane, const GradientTile& tile, const PartOperands& operands, float* dq,
                             void* scratch) const = 0;
  /// c += p^T [keys, rows] b for a whole tile: dV += P^T dO, dK += dS^T Q. c has column_elements(). With
  /// oneDNN it is [keys, D]; with our kernels [D, column_stride()], so that a row of p is read as vectors of
  /// keys.
  virtual void columns(int lane, const ScoreTile& tile, const void* p, const char* b, float* c,
                       void* scratch) const = 0;
  /// c as [keys, D]: c itself, or its transpose, written to `to`.
  virtual const float* rows_of_columns(const float* c, int64_t keys, float* to) const;

  /// Bytes of scratch for one lane.
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
  int64_t parts_of(int64_t queries) const { return pieces_of(queries, part_rows_); }
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

/// TileProducts made of separate products, with the scores stored between them.
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
  /// c [rows, D] += p [rows, keys] b, where `all` rows of b were packed.
  virtual void rows(int lane, const ScoreTile& tile, const void* p, const char* b, int64_t all, float* c,
                    void* scratch) const = 0;
};

}  // namespace ottava::cpu
