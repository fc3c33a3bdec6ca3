#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/float8_product.h"

namespace ottava {

/// Rows of a layer's local weight that run as one product: all of them or, where the policy splits a fused
/// matrix, those of one part.
struct LinearPiece {
  RowRange rows;
  std::optional<Float8Product> float8;  ///< absent: the compute type
};

/// A layer's input, or the gradient of its output, as its producer leaves it: values in the compute type,
/// row-wise codes, or both. A producer writes those of `values`, `amax` and `float8.output` that are not
/// empty.
struct LinearOperand {
  Allocation values = {};
  Float8Product::Produced float8 = {};
  Tensor amax = {};
  Allocation spare = {};  ///< of values that are not written once scales are known: memory is planned once
};

/// How transfers among tensor-parallel ranks run beside a layer's products. Both ways send the same bytes
/// and, over MPI and TCP, give the same bits.
enum class Overlap : uint8_t {
  bulk,    ///< whole: in backward of column style beside a product that does not need them, else waited for
  blocks,  ///< a rank's rows at a time, and so is the product that reads or makes them; in backward of column
           ///< style as `bulk`
};

/// The pieces given or, if there are none, one of all rows in the compute type.
std::vector<LinearPiece> pieces_or_one(std::vector<LinearPiece> pieces, int64_t rows);

/// What a layer keeps of its input for the weight gradient.
struct LinearInput {
  Allocation x;                          ///< the local input in the compute type, if a product wants it
  std::vector<Float8Allocation> pieces;  ///< per piece; empty for those that want x
  explicit operator bool() const { return static_cast<bool>(x) || !pieces.empty(); }
};

/// The gradient of a layer's output in the forms its two backward products need.
struct LinearOutputGradient {
  Allocation dy;                         ///< all tokens; absent if no product reads the compute type
  std::vector<Float8Allocation> pieces;  ///< per piece; empty for those in the compute type
  int64_t tokens = 0;
  GatheredRows arriving = {};  ///< rows of it that input_gradient() waits for; the weight's comes after it
};

/// Indices into the parameter table.
struct LinearParameters {
  int weight;
  int bias = -1;  ///< -1: none
};

/// y = x W^T (+ b) with W [O,K] from the parameter table. Forward, input gradient and weight gradient are
/// separate calls, so that a block can recompute its input between them.
///
/// In FP8 the input is quantized once, for y and for what is kept: the codes, a quarter of f32 and half of
/// bf16 (a recipe whose weight gradient is in high precision keeps x). Of a gathered input the local part is
/// kept and gathered again in backward: codes where there is one scale, else x. Float8Plan says which operand
/// is quantized where, and in which form it travels.
class Linear {
 public:
  /// `pieces` cover the local rows in order; a single one without FP8 is the plain layer.
  /// Throws ConfigError for a row-style layer with a bias, since every rank would add it. Even with
  /// Overlap::blocks, transfers stay whole for layers of several pieces, and for FP8 operands that travel as
  /// values, have block scales, or have rows per rank that are no multiple of 16.
  Linear(std::string name, LinearStyle style, LinearParameters parameters, std::vector<LinearPiece> pieces,
         Float8Product::Producers producers, Overlap overlap = Overlap::bulk);

  /// Where the producer of the input (`shape`: x of LinearStyle) is to write it for forward(context, ...,
  /// saved): values and, if the layer wants it, their amax; or only codes, if the layer reads nothing else
  /// and their scales are known as they are written. Where the layer keeps its input (saved is not null),
  /// these must be scales of earlier steps: codes with others serve y, but not the weight gradient.
  LinearOperand place_input(const StepContext& context, std::string_view name, Shape shape,
                            const LinearInput* saved) const;
  /// Returns y of LinearStyle and keeps in `saved`, unless it is null, what the weight gradient needs.
  Allocation forward(const StepContext& context, const LinearOperand& x, LinearInput* saved) const;
  /// What forward() would keep, for an input that was recomputed.
  LinearInput keep(const StepContext& context, const Allocation& x) const;

  /// Where the producer of dy (like y) is to write it: into `dy`, with its amax or with codes for the input
  /// gradient. The weight gradient reads dy itself, or quantizes it column-wise.
  LinearOperand place_output_gradient(const StepContext& context, const Allocation& dy) const;
  /// For a dy that another rank made: with its amax, if the layer takes a producer's amax.
  LinearOperand received_output_gradient(const StepContext& context, Allocation dy) const;
  /// Makes of dy what the two backward products read: gathered where ranks share its rows, quantized once for
  /// both.
  LinearOutputGradient output_gradient(const StepContext& context, const LinearOperand& dy) const;
  /// Returns dx, of the shape of x, and does what weight_gradient() does. Column style gathers x beside the
  /// product for dx, and sums dx over ranks beside the product for the weight gradient.
  Allocation backward(const StepContext& context, LinearOutputGradient& gradient, LinearInput saved) const;
  /// Returns dx, of the shape of x. Of `gradient` it changes only what was still arriving.
  Allocation input_gradient(const StepContext& context, LinearOutputGradient& gradient) const;
  /// Accumulates into the weight's (and bias's) FP32 gradient, or leaves that to context.deferred, which then
  /// holds the operands; nothing may write to them until it has run.
  void weight_gradient(const StepContext& context, const LinearOutputGradient& gradient,
                       const LinearInput& saved) const;

 private:
  bool gathers_input(const StepContext& c) const {
    return style_ == LinearStyle::column && c.tensor_parallel.size() > 1;
  }
  bool gathers_gradient(const StepContext& c) const {
    return style_ == LinearStyle::row && c.tensor_parallel.size() > 1;
  }
  bool is_one_product() const { return pieces_.size() == 1; }
  bool has_float8() const;
  /// The layer's one product in FP8; null for the compute type and for a fusion that is split.
  const Float8Product* float8() const {
    return is_one_product() && pieces_[0].float8 ? &*pieces_[0].float8 : nullptr;
  }
  /// A gathered x, in the form that the weight gradient reads, under way.
  struct InputGathering {
    TensorParallelGroup::Transfer x;
    std::vector<Float8Product::Gathering> pieces;
  };
  InputGathering start_gather(const StepContext& context, const LinearInput& saved) const;
  Allocation output(const StepContext& context, int64_t tokens) const;
  Allocation finish(const StepContext& context, const Allocation& y) const;
  /// Rows of the operand, of all ranks if `is_gathered`.
  int64_t tokens_of(const StepContext& c, const LinearOperand& operand, bool is_gathered) const;
  /// The rows of the weight that a piece multiplies, in the compute type.
  Tensor weight_of(const StepContext& c, const LinearPiece& piece) const {
    return c.parameters.weight(weight_).slice(piece.rows.begin, piece.rows.end);
  }
  /// Codes of x for y and, where it is kept without being gathered, for the weight gradient. `values`: what x
  /// is in the compute type, of all ranks if it is gathered so.
  Float8Allocation input_codes(const StepContext& c, const LinearPiece& piece, const LinearOperand& x,
                               const Tensor& values, bool keeps) const;
  /// The part of what was quantized for y that backward reads.
  Float8Allocation kept_part(const StepContext& c, const LinearPiece& piece,
                             const Float8Allocation& all) const;
  /// dy W, of all tokens.
  Allocation input_product(const StepContext& context, LinearOutputGradient& gradient) const;
  /// Whether Overlap::blocks applies to the product that reads x or dy, with `tokens` rows over all ranks.
  bool runs_in_blocks(const StepContext& c, Float8Product::Source source, int64_t tokens) const;
  Allocation forward_in_blocks(const StepContext& c, const LinearOperand& x, LinearInput* saved) const;
  /// Makes these rows of `out` from the same rows of an operand: codes, or values in the compute type.
  void block_product(const StepContext& c, MatmulKind kind, const Float8Allocation& codes,
                     const Allocation& values, RowRange rows, const Tensor& out) const;
  void accumulate(const StepContext& context, const LinearOutputGradient& gradient, const LinearInput& saved,
                  InputGathering gathering) const;
  void forward_pieces(const StepContext& c, const LinearOperand& x, const Allocation& y,
                      LinearInput* saved) const;

  std::string name_;
  LinearStyle style_;
  int weight_, bias_;
  std::vector<LinearPiece> pieces_;
  Overlap overlap_;
};

}  // namespace ottava
