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

/// One FP8 matrix product of a linear layer in its three forms: makes its operands as its plan says and runs
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
  /// In Float8State.
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
  /// What the producers of the operands can make beside the values; used where the plan takes it, so that
  /// quantizing does not measure again, or there is nothing left to quantize.
  enum class Producer : uint8_t { values, amax, codes };
  struct Producers {
    Producer x = Producer::values, dy = Producer::values;
  };
  void set_producers(Producers producers) { producers_ = producers; }
  /// u32 [1] for the producer; empty where it has not been told to measure, or the plan does not take it.
  Tensor amax_slot(const StepContext& context, Source source) const;
  /// Codes of m in one read. Where they travel: of this rank, with the amax of all ranks if they share a
  /// scale (one u32 all-reduce).
  Float8Allocation quantize(const StepContext& context, const Tensor& m, Source source, Use use) const;
  /// The same of a block of columns of m.
  Float8Allocation quantize(const StepContext& context, const Tensor& m, ColumnRange columns, Source source,
                            Use use) const;
  /// Row-wise codes of an operand [n,C] that its producer writes, with statistics as quantize() has them.
  /// Where takes_codes(). While a history fills there is memory for them and no `output`, since their
  /// scale is not known yet.
  struct Produced {
    Float8Allocation codes;
    fp8::RowOutput output = {};
  };
  bool takes_codes(Source source) const {
    return plan_of(source).takes_codes && producer_of(source) == Producer::codes;
  }
  Produced produced(const StepContext& context, Shape shape, Source source, MemoryCategory category) const;
  /// All codes that `use` wants, of produced() ones: column-wise ones are transposed, where scales allow
  /// that, else made of `values`, as row-wise ones are that were not written.
  Float8Allocation complete(const StepContext& context, const Produced& produced, const Tensor& values,
                            Source source, Use use) const;
  /// Row-wise codes [n,C] of every tensor-parallel rank: [n size, C]; for the weight gradient too if `use`
  /// says so, which takes scales per tensor.
  Float8Allocation gather(const StepContext& context, Float8Allocation mine, Source source, Use use) const;
  /// gather() in two halves.
  struct Gathering {
    Float8Allocation mine;
    TensorParallelGroup::Transfer codes, scales;
  };
  Gathering start_gather(const StepContext& context, Float8Allocation mine) const;
  Float8Allocation finish(const StepContext& context, Gathering gathering, Source source, Use use) const;
  /// gather() a rank's rows at a time, where has_row_blocks(): codes and their scales.
  GatheredRows gather_row_blocks(const StepContext& context, const Float8Allocation& mine) const;
  /// All of them, once they are here.
  Float8Allocation finish(const StepContext& context, const GatheredRows& rows, const Float8Allocation& mine,
                          Source source, Use use) const;
  /// Row-wise codes of some rows are codes and scales of these rows only, so that products can be made of
  /// them.
  static bool has_row_blocks(fp8::Granularity granularity);
  static fp8::Float8Tensor row_block(const Float8Allocation& all, RowRange rows);

  // --- products ----------------------------------------------------------------------------------
  /// y [T,O] = x W^T, or these columns of it.
  void forward(const StepContext& context, const fp8::Float8Tensor& x, const Tensor& y,
               ColumnRange columns = {}) const;
  /// dx [T,K] = dy W; f32 dx may be added to.
  void input_gradient(const StepContext& context, const fp8::Float8Tensor& dy, const Tensor& dx,
                      bool accumulate = false) const;
  /// dw [O,K] f32 = dy^T x, or added to.
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
  /// Memory for the transposed codes of row-wise ones, whose scales they share.
  Float8Allocation::Codes place_transposed(const StepContext& context, const Float8Allocation::Codes& rowwise,
                                           MemoryCategory category) const;
  /// What is gathered, with the orientation that the weight gradient reads.
  Float8Allocation for_products(const StepContext& context, Float8Allocation all, Source source,
                                Use use) const;
  /// `none` but for the weight gradient.
  fp8::ColumnwiseCodes columnwise_codes(const StepContext& context, Source source, Use use) const;
  void run(const StepContext& context, fp8::ScaledMatmul args) const;

  Options o_;
  Producers producers_;
};

}  // namespace ottava
