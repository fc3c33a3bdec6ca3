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
};

/// y = x W^T (+ b) with W [O,K] from the parameter table. Forward, input gradient and weight gradient are
/// apart, so that a block can recompute its input between them.
///
/// In FP8 the input is quantized once for y and for what is kept: the codes, a quarter of f32 and half of
/// bf16 (a recipe whose weight gradient is in high precision keeps x). What is kept of a gathered input is
/// the local part, gathered again in backward: codes where there is one scale, else x. Which operand is
/// quantized where, and what of it travels, Float8Plan says.
class Linear {
 public:
  /// What writes the operand also measures its amax (input_amax(), output_gradient_amax()).
  struct Measured {
    bool input = false, output_gradient = false;
  };
  /// `pieces` cover the local rows in order; one without FP8 is the plain layer. A row-style layer has no
  /// bias (-1), every rank would add it: ConfigError.
  Linear(std::string name, LinearStyle style, int weight, int bias, std::vector<LinearPiece> pieces,
         Measured measured);

  const std::string& name() const { return name_; }
  /// Slots for the producers that the constructor was told of; empty where nothing wants them.
  Tensor input_amax(const StepContext& context) const;
  Tensor output_gradient_amax(const StepContext& context) const;

  /// Keeps what the weight gradient needs in `saved`, unless it is null.
  Allocation forward(const StepContext& context, const Allocation& x, LinearInput* saved) const;
  /// True if forward() without keeping reads only row-wise codes of its input, of which a row knows its
  /// scales: then the producer of the input may write only these.
  bool takes_codes() const { return plan() && plan()->x.takes_codes; }
  /// Where it writes them, for an input [n,K].
  Float8Product::Produced input_codes(const StepContext& context, Shape shape) const;
  Allocation forward(const StepContext& context, const Float8Allocation& x) const;
  /// The same keeping for an input that was recomputed.
  LinearInput keep(const StepContext& context, const Allocation& x) const;

  /// `codes`: row-wise ones of dy, if its producer made them.
  LinearOutputGradient output_gradient(const StepContext& context, const Allocation& dy,
                                       const Float8Allocation& codes = {}) const;
  /// True if the input gradient reads row-wise codes of dy [n,O], of which a row knows its scales, and dy is
  /// all of it: then the producer of dy may write these with it. The weight gradient reads dy itself, or
  /// quantizes it column-wise.
  bool takes_gradient_codes() const { return plan() && plan()->dy.takes_codes; }
  /// Where it writes them.
  Float8Product::Produced output_gradient_codes(const StepContext& context, Shape shape) const;
  Allocation input_gradient(const StepContext& context, const LinearOutputGradient& gradient) const;
  /// Accumulates into the weight's (and bias's) FP32 gradient.
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
  /// Of the layer's one product; null for the compute type and for a fusion that is split.
  const Float8Plan* plan() const {
    return is_one_product() && pieces_[0].float8 ? &pieces_[0].float8->plan() : nullptr;
  }
  Allocation finish(const StepContext& context, const Allocation& y) const;
  Float8Allocation kept_part(const StepContext& c, const LinearPiece& piece,
                             const Float8Allocation& all) const;
  void forward_pieces(const StepContext& c, const Allocation& x, const Allocation& y,
                      LinearInput* saved) const;

  std::string name_;
  LinearStyle style_;
  int weight_, bias_;
  std::vector<LinearPiece> pieces_;
};

}  // namespace ottava
