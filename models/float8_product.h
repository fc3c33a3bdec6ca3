#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/float8/row_output.h"
#include "core/memory/float8_allocation.h"
#include "fp8/quantize_operand.h"
#include "fp8/scaled_matmul.h"
#include "models/float8_plan.h"
#include "models/step_context.h"

namespace ottava {

/// One FP8 matrix product of a linear layer in its three forms: makes its operands as its plan says, and runs
/// it. The weight is local: [O,K], or O rows of a fused one.
class Float8Product {
 public:
  struct Options {
    std::string name;
    fp8::Recipe recipe;
    Float8Plan plan;
    size_t entry = 0;     ///< in Fsdp's FP8 weights
    int64_t product = 0;  ///< in Float8State
    bool emulates = false;
    fp8::FastAccumulation fast = fp8::FastAccumulation::forward;
  };
  explicit Float8Product(Options options) : o_(std::move(options)) {}
  enum class Source { x, dy };

  const std::string& name() const { return o_.name; }
  const Float8Plan& plan() const { return o_.plan; }
  const Float8Plan::Operand& plan_of(Source source) const {
    return source == Source::x ? o_.plan.x : o_.plan.dy;
  }
  /// The product's index in Float8State.
  int64_t index() const { return o_.product; }
  bool weight_gradient_is_fp8() const { return o_.recipe.weight_gradient.is_fp8; }

  // --- operands ----------------------------------------------------------------------------------
  fp8::Granularity granularity_of(Source source) const { return recipe_of(source).granularity; }
  /// What the codes of a matrix are made for.
  struct Use {
    bool product = false;          ///< y or dx: row-wise
    bool weight_gradient = false;  ///< column-wise where the device or the scales want that, else row-wise
    bool is_kept = false;          ///< from forward to backward
    MemoryCategory category() const {
      return is_kept ? MemoryCategory::activations : MemoryCategory::scratch;
    }
  };
  /// What the producers of the operands can make beside the values. Used where the plan takes it, so that
  /// quantizing need not measure again, or nothing is left to quantize.
  enum class Producer : uint8_t { values, amax, codes };
  struct Producers {
    Producer x = Producer::values, dy = Producer::values;
  };
  void set_producers(Producers producers) { producers_ = producers; }
  /// u32 [1], to be raised by the producer; empty if it does not measure or the plan does not take its amax.
  Tensor amax_slot(const StepContext& context, Source source) const;
  /// Quantizes m in one read, for `use`. Codes that travel are those of this rank's rows; if ranks share a
  /// scale, it is made from the amax of all (one u32 all-reduce).
  Float8Allocation quantize(const StepContext& context, const Tensor& m, Source source, Use use) const;
  /// The same for a block of columns of m.
  Float8Allocation quantize(const StepContext& context, const Tensor& m, ColumnRange columns, Source source,
                            Use use) const;
  /// Row-wise codes of an operand [n,C] that its producer writes, with statistics as by quantize(). Only
  /// where takes_codes(). While a history fills there is memory for them but no `output`, since their scale
  /// is not known yet.
  struct Produced {
    Float8Allocation codes;
    fp8::RowOutput output = {};
  };
  bool takes_codes(Source source) const {
    return plan_of(source).takes_codes && producer_of(source) == Producer::codes;
  }
  Produced produced(const StepContext& context, Shape shape, Source source, MemoryCategory category) const;
  /// All codes that `use` needs, starting from produced() ones. Column-wise codes are transposed from these
  /// where scales allow it, else made from `values`; so are row-wise codes that were not written.
  Float8Allocation complete(const StepContext& context, const Produced& produced, const Tensor& values,
                            Source source, Use use) const;
  /// Gathers the row-wise codes [n,C] of every tensor-parallel rank: [n size, C]. They serve the weight
  /// gradient too if `use` says so, which requires scales per tensor. Throws ShapeError where rows cannot be
  /// gathered (RowGather::none).
  Float8Allocation gather(const StepContext& context, Float8Allocation mine, Source source, Use use) const;
  /// gather() in two halves.
  struct Gathering {
    Float8Allocation mine;
    TensorParallelGroup::Transfer codes, scales;
  };
  Gathering start_gather(const StepContext& context, Float8Allocation mine) const;
  Float8Allocation finish(const StepContext& context, Gathering gathering, Source source, Use use) const;
  /// gather() of codes and their scales, one rank's rows at a time. Only where has_row_blocks().
  GatheredRows gather_row_blocks(const StepContext& context, const Float8Allocation& mine) const;
  /// All of them, once they have arrived.
  Float8Allocation finish(const StepContext& context, const GatheredRows& rows, const Float8Allocation& mine,
                          Source source, Use use) const;
  /// True if the row-wise codes and scales of some rows belong to no other rows, so that products can be
  /// made of a block of rows (row_block()).
  static bool has_row_blocks(fp8::Granularity granularity);
  static fp8::Float8Tensor row_block(const Float8Allocation& all, RowRange rows);

  // --- products ----------------------------------------------------------------------------------
  /// y [T,O] = x W^T, written to `columns` of y if given.
  void forward(const StepContext& context, const fp8::Float8Tensor& x, const Tensor& y,
               ColumnRange columns = {}) const;
  /// dx [T,K] = dy W, or dx += that (f32 only).
  void input_gradient(const StepContext& context, const fp8::Float8Tensor& dy, const Tensor& dx,
                      bool accumulate = false) const;
  /// dw [O,K] f32 = dy^T x, or dw += that.
  void weight_gradient(const StepContext& context, const Float8Allocation& dy, const Float8Allocation& x,
                       const Tensor& dw, bool accumulate) const;

 private:
  const fp8::OperandRecipe& recipe_of(Source source) const;
  Producer producer_of(Source source) const { return source == Source::x ? producers_.x : producers_.dy; }
  bool is_measured(Source source) const {
    return plan_of(source).takes_amax && producer_of(source) != Producer::values;
  }
  int64_t slot_of(Source source) const { return 2 * o_.product + (source == Source::dy); }
  fp8::OperandSlots slots(const StepContext& context, Source source) const;
  Float8Allocation::Codes place(const StepContext& context, Source source, Shape shape,
                                std::string_view suffix, MemoryCategory category) const;
  /// Memory for the transpose of row-wise codes, whose scales it shares.
  Float8Allocation::Codes place_transposed(const StepContext& context, const Float8Allocation::Codes& rowwise,
                                           MemoryCategory category) const;
  /// What is gathered, with the orientation that the weight gradient reads.
  Float8Allocation for_products(const StepContext& context, Float8Allocation all, Source source,
                                Use use) const;
  /// `none` unless the use includes the weight gradient.
  fp8::ColumnwiseCodes columnwise_codes(const StepContext& context, Source source, Use use) const;
  void run(const StepContext& context, fp8::ScaledMatmul args) const;

  Options o_;
  Producers producers_;
};

}  // namespace ottava
