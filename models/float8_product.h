#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/float8/row_output.h"
#include "fp8/recipe.h"
#include "fp8/scaled_matmul.h"
#include "models/step_context.h"

namespace ottava {

/// A matrix [R,C] in FP8, in the arena: as it lies, transposed, or both.
struct Float8Matrix {
  Allocation bytes, scales;                ///< [R,C]
  Allocation turned_bytes, turned_scales;  ///< [C,R]
  fp8::Granularity granularity = fp8::Granularity::tensor;

  explicit operator bool() const { return static_cast<bool>(bytes) || static_cast<bool>(turned_bytes); }
  /// With the columns as contraction: for y and for dx.
  fp8::ScaledOperand along_columns() const;
  /// With the rows as contraction: for dW. Transposed bytes where there are some.
  fp8::ScaledOperand along_rows() const;
};

/// One FP8 matrix product of a linear layer in its three forms; knows how operands are made and where amaxes
/// go. The weight is local: [O,K], or O rows of a fused one.
class Float8Product {
 public:
  /// `entry` in Fsdp's FP8 weights; `product` in Float8State.
  Float8Product(std::string name, fp8::Recipe recipe, size_t entry, int64_t product, bool emulates)
      : name_(std::move(name)), recipe_(recipe), entry_(entry), product_(product), emulates_(emulates) {}

  const std::string& name() const { return name_; }
  /// In Float8State.
  int64_t index() const { return product_; }
  const fp8::Recipe& recipe() const { return recipe_; }
  bool weight_gradient_is_fp8() const { return recipe_.weight_gradient.is_fp8; }
  bool has_tensor_scales() const { return recipe_.forward.a.granularity == fp8::Granularity::tensor; }

  // --- operands ----------------------------------------------------------------------------------
  enum class Source { x, dy };
  /// What of a matrix is wanted: for the product along its columns, for the weight gradient, for both.
  struct Wanted {
    bool along_columns = false, along_rows = false;
  };
  /// Where its amax is raised by a producer; empty for recipes that measure in smaller groups.
  Tensor amax_slot(const StepContext& context, Source source) const;
  /// Quantizes m in one read. `is_measured`: its producer raised the slot. On the CPU, and for scales per
  /// tensor, the straight bytes serve the weight gradient too.
  Float8Matrix quantize(const StepContext& context, const Tensor& m, Source source, Wanted wanted,
                        bool is_measured, MemoryCategory category) const;
  /// An operand [n,C] that its producer quantizes as it writes it: where it puts the bytes, for products
  /// along columns. For scales per row or 1x128; the rest as quantize() has it.
  struct Produced {
    Float8Matrix matrix;
    fp8::RowOutput output;
  };
  bool can_be_produced(Source source) const;
  Produced produced(const StepContext& context, Shape shape, Source source) const;
  /// m [n,C] of every tensor-parallel rank as bytes [n size, C], never gathered in the compute type:
  /// quantized with a common scale (tensor; one u32 all-reduce), or with scales per row or 1x128 that travel
  /// along; along_rows for scales per tensor alone. `local`, if given, gets this rank's bytes. Other
  /// granularities: ShapeError.
  Float8Matrix gather(const StepContext& context, const Tensor& m, Source source, Wanted wanted,
                      bool is_measured, Float8Matrix* local) const;
  bool can_gather(Source source) const;
  /// The same of bytes that are there, with scales per row or 1x128.
  Float8Matrix gather_bytes(const StepContext& context, const Float8Matrix& mine, Source source) const;
  /// The bytes of a local matrix that were kept, of all ranks; scales per tensor alone.
  Float8Matrix gather_kept(const StepContext& context, const Float8Matrix& local) const;

  // --- products ----------------------------------------------------------------------------------
  /// y [T,O] = x W^T.
  void forward(const StepContext& context, const Float8Matrix& x, const Tensor& y) const;
  /// dx [T,K] = dy W; f32 dx may be added to.
  void input_gradient(const StepContext& context, const Float8Matrix& dy, const Tensor& dx,
                      bool accumulate) const;
  /// dw [O,K] f32 = dy^T x, or added to.
  void weight_gradient(const StepContext& context, const Float8Matrix& dy, const Float8Matrix& x,
                       const Tensor& dw, bool accumulate) const;

 private:
  const fp8::OperandRecipe& operand_recipe(Source source) const;
  int64_t slot(Source source) const { return 2 * product_ + (source == Source::dy); }
  /// [R,C] in the arena, to be filled. `suffix` ends the names in the memory plan.
  fp8::Float8Codes place(const StepContext& context, Source source, Shape shape, std::string_view suffix,
                         Allocation& bytes, Allocation& scales, MemoryCategory category) const;
  /// Adds the transposed bytes of a matrix with one scale, if the weight gradient reads those.
  void turn(const StepContext& context, Float8Matrix& m) const;
  /// The weight gradient reads transposed bytes: tensor cores want the contraction inside, and scales per row
  /// or block belong to one direction.
  bool turns(const StepContext& context) const;
  void run(const StepContext& context, fp8::ScaledMatmul args) const;

  std::string name_;
  fp8::Recipe recipe_;
  size_t entry_;
  int64_t product_;
  bool emulates_;
};

}  // namespace ottava
