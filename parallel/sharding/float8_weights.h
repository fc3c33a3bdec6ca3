#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory/arena.h"
#include "fp8/amax_history.h"
#include "fp8/scaled_matmul.h"
#include "parallel/sharding/float8_travel.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

struct ParameterShard;

/// The end of the labels under which the cost of making codes of gathered weights is recorded (core/cost.h).
inline constexpr std::string_view kGatheredWeights = "gathered weights";

/// FP8 codes of the weights, made once per optimizer step from the f32 masters (rounded to bf16 first, so
/// that they are the codes of the gathered bf16 weight). Where they live:
///
///   resident   not sharded: whole, for the life of the run
///   gathered   sharded, Float8WeightTravel::in_codes: each rank makes its shard's codes; whole ones exist
///              while their unit is whole
///   local      sharded otherwise: every rank makes them from the gathered weight, after every gather
///   kept       the same with Options::keeps_codes, once per step or validation: whole, for the life of the
///              run
///   elsewhere  on the ranks of another pipeline stage
///
/// A scale per tensor covers the weight across shards and tensor-parallel ranks, which takes one all-reduce
/// (u32, max) of all amaxes per optimizer step. Scales per row of the transposed weight cover the
/// tensor-parallel slice, which takes one all-reduce of column amaxes among shards where codes are gathered.
/// All other scales lie within a shard. So codes do not depend on how they travelled.
class Float8Weights {
 public:
  struct Options {
    std::vector<Float8WeightSpec> specs;
    int64_t amax_history_length = 0, margin = 0;  ///< recipe delayed
    bool counts = false;                          ///< keep statistics
    bool keeps_codes = false;                     ///< of weights that are not gathered in codes
  };
  /// Takes persistent memory. `shards` are those of Fsdp, by parameter, and must outlive this.
  Float8Weights(Arena& arena, RankGroups& ranks, const std::vector<ParameterShard>& shards, Options options,
                Device target);

  const std::vector<Float8WeightSpec>& specs() const { return options_.specs; }
  /// Makes and exchanges amaxes, and makes the codes that live through the step; does nothing if the weights
  /// have not changed. Kept codes are made again when first used; for a validation only those of forward.
  void refresh(Stream& stream, WeightUse uses = WeightUse::both);
  /// The next refresh makes new codes.
  void weights_changed() { is_current_ = is_measured_ = false; }
  /// The same after the optimizer has changed them and has raised updated_amax() of every parameter that has
  /// one.
  void weights_updated() {
    is_current_ = false;
    is_measured_ = true;
  }
  /// To be called before the optimizer writes weights: sets their amaxes to 0.
  void begin_update(Stream& stream);
  /// u32 [1], to be raised by what writes a parameter's shard; empty where no scale covers the whole
  /// weight.
  Tensor updated_amax(int parameter) const;
  /// To be called after an optimizer step that was not skipped.
  void advance_history(Stream& stream);

  /// Within a group of calls on dp_shard: gathers this entry's codes for one use (forward, where one set
  /// serves both). They must not have been gathered yet.
  void gather(Stream& stream, size_t entry, WeightUse use);
  void release(size_t entry);
  /// True if forward and backward read the same codes.
  bool shares_codes(size_t entry) const { return entries_[entry].travel.shares_codes; }
  /// True if no product needs the gathered weight until the next refresh().
  bool holds_codes(size_t entry) const { return entries_[entry].holds_codes; }

  /// Operand b of the product. `whole` is the gathered slice in the compute type, needed for local entries
  /// and for kept ones without holds_codes(); else left out.
  fp8::Float8Tensor operand(Stream& stream, size_t entry, WeightUse use, const Tensor& whole);

  // What was measured at the last refresh, per entry.
  const Tensor& amax() const { return amax_; }  ///< u32; without a scale per tensor, only with statistics
  const Tensor& counters() const { return counters_; }  ///< i64 [entries, 3]; absent without statistics
  /// Sets the counters to zero, if there are any: memory of a GPU holds anything at first.
  void clear_counters(Stream& stream);
  const Tensor& non_finite() const {
    return non_finite_;
  }  ///< u32, one more than entries: the last is gradient_flag()
  /// u32 [1], raised by non-finite gradients that travel in FP8.
  Tensor gradient_flag() const { return non_finite_.slice(non_finite_.numel() - 1, non_finite_.numel()); }
  fp8::AmaxHistory* history() { return history_.rows.empty() ? nullptr : &history_; }

 private:
  enum class Home { resident, gathered, local, kept, elsewhere };
  /// One set of codes, for one use or both.
  struct Form {
    fp8::OperandRecipe recipe;
    Tensor column_amax;              ///< u32 [columns], where codes are scaled per column of the weight
    fp8::Float8Codes shard;          ///< gathered ones: this rank's, as they travel
    fp8::Float8Codes gathered;       ///< and those of all shards, while their unit is whole
    fp8::Float8Tensor whole;         ///< what products read, in the orientations that have been read
    std::vector<Allocation> memory;  ///< of `gathered` and `whole`; resident ones are persistent
  };
  struct Entry {
    Home home = Home::resident;
    Float8WeightTravel travel;
    Form forms[2];
    RowRange shard;  ///< rows of the slice that this rank holds, within the entry
    int64_t rows = 0, columns = 0, segment_rows = 0;
    Tensor padded;             ///< bf16, resident padded ones
    bool holds_codes = false;  ///< kept ones: made since the last refresh
    /// The uses that have codes of their own.
    std::span<const WeightUse> uses() const {
      static constexpr WeightUse kUses[] = {WeightUse::forward, WeightUse::backward};
      return {kUses, travel.shares_codes ? 1u : 2u};
    }
    Form& form(WeightUse use) { return forms[use == WeightUse::backward && !travel.shares_codes]; }
    bool scales_travel(WeightUse use) const {
      return use == WeightUse::backward ? travel.backward_scales : travel.forward_scales;
    }
    bool has_amax() const;
    bool exchanges_column_amax() const;
  };

  void place(Arena& arena, size_t entry);
  void place_resident(Arena& arena, size_t entry, WeightUse use);
  void place_gathered(Arena& arena, size_t entry, WeightUse use);
  void place_shared(Arena& arena);
  Tensor master_rows(size_t entry) const;
  Tensor scale_amax(size_t entry) const;
  bool has_scale_of_whole(size_t entry) const;
  void measure(Stream& stream);
  void exchange(Stream& stream);
  void make(Stream& stream, size_t entry, const Form& form, const Tensor& x, const fp8::Float8Tensor& out,
            const Tensor& column_amax);
  void make_resident(Stream& stream, size_t entry, WeightUse use);
  void make_shard(Stream& stream, size_t entry, WeightUse use);
  void make_column_scales(Stream& stream, size_t entry);
  Allocation padded_rows(Stream& stream, size_t entry, Tensor& x);
  void make_local(Stream& stream, size_t entry, WeightUse use, const Tensor& whole);
  void make_kept(Stream& stream, size_t entry, const Tensor& whole);
  void assemble(Stream& stream, size_t entry, WeightUse use);
  Tensor allocate(Form& form, std::string_view name, DType dtype, Shape shape);
  fp8::Float8Codes allocate_codes(Form& form, std::string_view name, Shape shape);
  /// True if this use is, or includes, the input gradient and that reads column-wise codes; a CPU's product
  /// contracts rows where scales are transpose-invariant.
  bool reads_columnwise(const fp8::OperandRecipe& recipe, WeightUse use) const;

  Arena& arena_;
  RankGroups& ranks_;
  const std::vector<ParameterShard>& shards_;
  Options options_;
  Device target_;
  std::vector<Entry> entries_;
  Tensor amax_, scale_amax_, counters_, non_finite_;
  Tensor column_amax_;        ///< all vectors that are exchanged, one after the other
  Tensor transpose_scratch_;  ///< u8, of the largest shard
  Tensor tile_scratch_;       ///< e8m0, tiles of the largest shard
  fp8::AmaxHistory history_;
  Tensor updated_amax_;  ///< u32 [entries], of the weights that the optimizer wrote last
  bool is_current_ = false, is_measured_ = false;
  WeightUse uses_ = WeightUse::both;  ///< of kept codes
};

}  // namespace ottava
