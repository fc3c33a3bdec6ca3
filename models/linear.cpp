#include "models/linear.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/ops/elementwise.h"
#include "core/ops/matmul/matmul.h"

namespace ottava {
namespace {

using Source = Float8Product::Source;

/// Columns of one piece of a matrix whose columns are a layer's outputs.
Allocation columns_of(const StepContext& c, const Allocation& all, const LinearPiece& piece, bool is_whole,
                      std::string_view name) {
  if (is_whole) return all;
  Allocation part =
      c.scratch(fmt::format("{}.part", name), all.tensor().dtype, {all.tensor().rows(), piece.rows.size()});
  take_columns(c.stream, all, piece.rows.begin, part);
  return part;
}

/// What is made again was measured and counted before.
StepContext again(const StepContext& c) {
  StepContext copy = c;
  copy.is_recomputing = true;
  return copy;
}

}  // namespace

Linear::Linear(std::string name, LinearStyle style, int weight, int bias, std::vector<LinearPiece> pieces,
               Measured measured)
    : name_(std::move(name)),
      style_(style),
      weight_(weight),
      bias_(bias),
      pieces_(std::move(pieces)),
      measured_(measured) {
  if (style_ == LinearStyle::row && bias_ >= 0) {
    fail<ConfigError>(
        "linear",
        "{} has a bias in row style: every tensor-parallel rank would add it to its part of the sum, "
        "make it a column-style layer or leave the bias out",
        name_);
  }
}

bool Linear::has_float8() const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [](const LinearPiece& p) { return p.float8.has_value(); });
}

bool Linear::gathers_bytes(const StepContext& c, Source source) const {
  if (!is_one_product() || !pieces_[0].float8 || !c.float8->options().gathers_activations) return false;
  const Float8Product& product = *pieces_[0].float8;
  if (source == Source::x) return gathers_input(c) && product.can_gather(source);
  // Bytes serve both products with the output's gradient only where there is one scale and both are FP8.
  return gathers_gradient(c) && product.has_tensor_scales() && product.weight_gradient_is_fp8();
}

bool Linear::input_is_measured(const StepContext& c) const {
  const bool is_local = !gathers_input(c) || gathers_bytes(c, Source::x);
  return measured_.input && is_one_product() && pieces_[0].float8 && pieces_[0].float8->has_tensor_scales() &&
         is_local;
}

bool Linear::gradient_is_measured(const StepContext& c) const {
  const bool is_local = !gathers_gradient(c) || gathers_bytes(c, Source::dy);
  return measured_.output_gradient && is_one_product() && pieces_[0].float8 &&
         pieces_[0].float8->has_tensor_scales() && is_local;
}

Tensor Linear::input_amax(const StepContext& c) const {
  return input_is_measured(c) ? pieces_[0].float8->amax_slot(c, Source::x) : Tensor{};
}

Tensor Linear::output_gradient_amax(const StepContext& c) const {
  return gradient_is_measured(c) ? pieces_[0].float8->amax_slot(c, Source::dy) : Tensor{};
}

/// For its weight gradient: of a gathered input bytes are kept only where a local part of them makes sense.
bool Linear::keeps_bytes(const StepContext& c, const LinearPiece& piece) const {
  return piece.float8 && piece.float8->weight_gradient_is_fp8() &&
         (!gathers_input(c) || piece.float8->has_tensor_scales());
}

Allocation Linear::forward(const StepContext& c, const Allocation& x, LinearInput* saved) const {
  StepContext::Scope scope(c, name_);
  const int64_t tokens = x.tensor().rows() * (gathers_input(c) ? c.tensor_parallel.size() : 1);
  Allocation y = c.activation(name_, c.compute, {tokens, pieces_.back().rows.end});
  if (saved) *saved = {};
  if (gathers_bytes(c, Source::x)) {
    const Float8Product& product = *pieces_[0].float8;
    const bool keeps = saved && keeps_bytes(c, pieces_[0]);
    Float8Matrix local;
    product.forward(c,
                    product.gather(c, x, Source::x, {.along_columns = true}, input_is_measured(c),
                                   keeps ? &local : nullptr),
                    y);
    if (keeps) saved->pieces.push_back(std::move(local));
  } else {
    forward_pieces(c, x, y, saved);
  }
  const bool wants_x =
      std::any_of(pieces_.begin(), pieces_.end(), [&](const LinearPiece& p) { return !keeps_bytes(c, p); });
  if (saved && wants_x) saved->x = x;
  return finish(c, y);
}

Allocation Linear::finish(const StepContext& c, const Allocation& y) const {
  if (bias_ >= 0) add_bias(c.stream, y, c.parameters.weight(bias_));
  return style_ == LinearStyle::row ? c.tensor_parallel.reduce_scatter_rows(c.stream, c.arena, y, name_) : y;
}

bool Linear::takes_bytes(const StepContext& c) const {
  return is_one_product() && pieces_[0].float8 && pieces_[0].float8->can_be_produced(Source::x) &&
         (!gathers_input(c) || gathers_bytes(c, Source::x));
}

Float8Product::Produced Linear::input_bytes(const StepContext& c, Shape shape) const {
  return pieces_[0].float8->produced(c, shape, Source::x);
}

Allocation Linear::forward(const StepContext& c, const Float8Matrix& x) const {
  StepContext::Scope scope(c, name_);
  const Float8Product& product = *pieces_[0].float8;
  const Float8Matrix all = gathers_input(c) ? product.gather_bytes(c, x, Source::x) : x;
  Allocation y = c.activation(name_, c.compute, {all.bytes.tensor().rows(), pieces_.back().rows.end});
  product.forward(c, all, y);
  return finish(c, y);
}

void Linear::forward_pieces(const StepContext& c, const Allocation& x, const Allocation& y,
                            LinearInput* saved) const {
  Allocation input = gathers_input(c) ? c.tensor_parallel.gather_rows(c.stream, c.arena, x, name_) : x;
  for (const LinearPiece& piece : pieces_) {
    Allocation part =
        is_one_product() ? y : c.scratch(name_ + ".part", c.compute, {y.tensor().rows(), piece.rows.size()});
    const bool keeps = saved && keeps_bytes(c, piece);
    Float8Matrix q;
    if (piece.float8) {
      q = piece.float8->quantize(
          c, input, Source::x, {.along_columns = true, .along_rows = keeps && !gathers_input(c)},
          input_is_measured(c), keeps ? MemoryCategory::activations : MemoryCategory::scratch);
      piece.float8->forward(c, q, part);
    } else {
      const Tensor weight = c.parameters.weight(weight_).slice(piece.rows.begin, piece.rows.end);
      matmul(c.stream, {.kind = MatmulKind::forward, .a = input, .b = weight, .out = part});
    }
    if (!is_one_product()) copy_columns(c.stream, part, y, piece.rows.begin);
    if (saved && has_float8()) saved->pieces.push_back(keeps ? kept_part(c, piece, q) : Float8Matrix{});
  }
}

/// Of everything that was quantized for y, what backward reads.
Float8Matrix Linear::kept_part(const StepContext& c, const LinearPiece& piece,
                               const Float8Matrix& all) const {
  Float8Matrix kept = all;
  if (kept.turned_bytes) {
    kept.bytes.release();
    kept.scales.release();
  }
  if (!gathers_input(c)) return kept;
  const int64_t rows = all.bytes.tensor().rows() / c.tensor_parallel.size(),
                first = rows * c.tensor_parallel.rank();
  kept = {.granularity = all.granularity};
  kept.bytes =
      c.activation(piece.float8->name() + ".x", all.bytes.tensor().dtype, {rows, all.bytes.tensor().cols()});
  cast(c.stream, all.bytes.tensor().slice(first, first + rows), kept.bytes);
  kept.scales = all.scales;
  return kept;
}

LinearInput Linear::keep(const StepContext& context, const Allocation& x) const {
  const StepContext c = again(context);
  StepContext::Scope scope(c, name_);
  LinearInput kept;
  for (const LinearPiece& piece : pieces_) {
    if (!keeps_bytes(c, piece)) kept.x = x;
    if (!has_float8()) continue;
    // The slot holds the amax of everything that forward gathered.
    const Float8Product::Wanted wanted{.along_columns = gathers_input(c), .along_rows = !gathers_input(c)};
    kept.pieces.push_back(keeps_bytes(c, piece)
                              ? piece.float8->quantize(c, x, Source::x, wanted, true, MemoryCategory::scratch)
                              : Float8Matrix{});
  }
  return kept;
}

bool Linear::takes_gradient_bytes(const StepContext& c) const {
  return is_one_product() && pieces_[0].float8 && pieces_[0].float8->can_be_produced(Source::dy) &&
         !gathers_gradient(c);
}

Float8Product::Produced Linear::output_gradient_bytes(const StepContext& c, Shape shape) const {
  return pieces_[0].float8->produced(c, shape, Source::dy);
}

LinearOutputGradient Linear::output_gradient(const StepContext& c, const Allocation& dy,
                                             const Float8Matrix& bytes) const {
  StepContext::Scope scope(c, name_);
  LinearOutputGradient out{.tokens =
                               dy.tensor().rows() * (gathers_gradient(c) ? c.tensor_parallel.size() : 1)};
  if (gathers_bytes(c, Source::dy)) {
    out.pieces.push_back(pieces_[0].float8->gather(
        c, dy, Source::dy, {.along_columns = true, .along_rows = true}, gradient_is_measured(c), nullptr));
    return out;
  }
  if (bytes) {
    const Float8Product& product = *pieces_[0].float8;
    Float8Matrix q = bytes;
    if (product.weight_gradient_is_fp8()) {
      const Float8Matrix turned =
          product.quantize(again(c), dy, Source::dy, {.along_rows = true}, true, MemoryCategory::scratch);
      q.turned_bytes = turned.turned_bytes, q.turned_scales = turned.turned_scales;
    }
    out.pieces.push_back(std::move(q));
    if (bias_ >= 0 || !product.weight_gradient_is_fp8()) out.dy = dy;
    return out;
  }
  Allocation all = gathers_gradient(c) ? c.tensor_parallel.gather_rows(c.stream, c.arena, dy, name_) : dy;
  bool wants_dy = bias_ >= 0;
  for (const LinearPiece& piece : pieces_) {
    wants_dy |= !piece.float8 || !piece.float8->weight_gradient_is_fp8();
    if (!has_float8()) continue;
    if (!piece.float8) {
      out.pieces.emplace_back();
      continue;
    }
    Allocation part = columns_of(c, all, piece, is_one_product(), name_);
    out.pieces.push_back(piece.float8->quantize(
        c, part, Source::dy, {.along_columns = true, .along_rows = piece.float8->weight_gradient_is_fp8()},
        gradient_is_measured(c), MemoryCategory::scratch));
  }
  if (wants_dy) out.dy = all;
  return out;
}

Allocation Linear::input_gradient(const StepContext& c, const LinearOutputGradient& gradient) const {
  StepContext::Scope scope(c, name_);
  Allocation dx =
      c.scratch(name_ + ".dx", c.compute, {gradient.tokens, c.parameters.shard(weight_).slice[1]});
  // Several pieces add up in f32 and are rounded once, as one product would be.
  Allocation sum = is_one_product() ? dx : c.scratch(name_ + ".dx sum", DType::f32, dx.tensor().shape);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const LinearPiece& piece = pieces_[i];
    if (piece.float8) {
      piece.float8->input_gradient(c, gradient.pieces[i], sum, i > 0);
      continue;
    }
    const Tensor weight = c.parameters.weight(weight_).slice(piece.rows.begin, piece.rows.end);
    Allocation dy = columns_of(c, gradient.dy, piece, is_one_product(), name_);
    matmul(c.stream,
           {.kind = MatmulKind::input_gradient, .a = dy, .b = weight, .out = sum, .accumulate = i > 0});
  }
  if (!is_one_product()) cast(c.stream, sum, dx);
  sum.release();
  return style_ == LinearStyle::column ? c.tensor_parallel.reduce_scatter_rows(c.stream, c.arena, dx, name_)
                                       : dx;
}

void Linear::weight_gradient(const StepContext& context, const LinearOutputGradient& gradient,
                             const LinearInput& saved) const {
  const StepContext c = again(context);
  StepContext::Scope scope(c, name_);
  Allocation x;
  if (saved.x)
    x = gathers_input(c) ? c.tensor_parallel.gather_rows(c.stream, c.arena, saved.x, name_) : saved.x;
  const Fsdp::Gradient dw = c.parameters.gradient(weight_);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const LinearPiece& piece = pieces_[i];
    const Tensor rows = dw.tensor.slice(piece.rows.begin, piece.rows.end);
    if (piece.float8 && piece.float8->weight_gradient_is_fp8()) {
      Float8Matrix q;
      if (!keeps_bytes(c, piece)) {
        q = piece.float8->quantize(c, x, Source::x, {.along_rows = true}, true, MemoryCategory::scratch);
      } else {
        q = gathers_input(c) ? piece.float8->gather_kept(c, saved.pieces[i]) : saved.pieces[i];
      }
      piece.float8->weight_gradient(c, gradient.pieces[i], q, rows, dw.accumulate);
      continue;
    }
    Allocation dy = columns_of(c, gradient.dy, piece, is_one_product(), name_);
    matmul(c.stream,
           {.kind = MatmulKind::weight_gradient, .a = dy, .b = x, .out = rows, .accumulate = dw.accumulate});
  }
  if (bias_ >= 0) bias_gradient(c.stream, gradient.dy, c.parameters.zeroed_gradient(bias_));
}

}  // namespace ottava
