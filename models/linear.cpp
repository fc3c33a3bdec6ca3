#include "models/linear.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/ops/elementwise.h"
#include "core/ops/matmul/matmul.h"
#include "fp8/quantize.h"
#include "fp8/quantize_operand.h"
#include "fp8/scaled_matmul.h"
#include "models/float8_plan.h"
#include "models/float8_product.h"
#include "models/step_context.h"
#include "parallel/sharding/fsdp.h"
#include "parallel/sharding/tensor_parallel.h"

namespace ottava {
namespace {

using Source = Float8Product::Source;
constexpr Float8Product::Use kForProduct{.product = true}, kForWeightGradient{.weight_gradient = true};

// Rows of a block in FP8 are a multiple of this, so that its codes and scales are aligned as a GPU's products
// need.
constexpr int64_t kFloat8Rows = 16;

/// Columns of a matrix of the layer's outputs.
ColumnRange columns_of(const LinearPiece& piece) { return {piece.rows.begin, piece.rows.end}; }

/// What of x is kept for the weight gradient.
bool keeps_codes(const LinearPiece& piece) { return piece.float8 && piece.float8->plan().keeps_codes; }

}  // namespace

std::vector<LinearPiece> pieces_or_one(std::vector<LinearPiece> pieces, int64_t rows) {
  if (pieces.empty()) pieces.push_back({.rows = {0, rows}});
  return pieces;
}

Linear::Linear(std::string name, LinearStyle style, LinearParameters parameters,
               std::vector<LinearPiece> pieces, Float8Product::Producers producers, Overlap overlap)
    : name_(std::move(name)),
      style_(style),
      weight_(parameters.weight),
      bias_(parameters.bias),
      pieces_(std::move(pieces)),
      overlap_(overlap) {
  if (float8()) pieces_[0].float8->set_producers(producers);
  if (style_ == LinearStyle::row && bias_ >= 0) {
    fail<ConfigError>(
        "linear",
        "{} has a bias in row style: every tensor-parallel rank would add it to its part of the sum, "
        "make it a column-style layer or leave the bias out",
        name_);
  }
}

bool Linear::has_float8() const {
  return std::ranges::any_of(pieces_, [](const LinearPiece& p) { return p.float8.has_value(); });
}

LinearOperand Linear::place_input(const StepContext& c, std::string_view name, Shape shape,
                                  const LinearInput* saved) const {
  const Float8Product* product = float8();
  if (!product) return {.values = c.activation(name, c.compute, shape)};
  LinearOperand out;
  const bool has_history = product->plan_of(Source::x).has_history,
             takes_codes = product->takes_codes(Source::x) && (!saved || has_history);
  if (!takes_codes || has_history) out.values = c.activation(name, c.compute, shape);
  if (takes_codes) {
    out.float8 =
        product->produced(c, shape, Source::x, saved ? MemoryCategory::activations : MemoryCategory::scratch);
  }
  if (out.float8.output.empty()) {
    out.amax = product->amax_slot(c, Source::x);
  } else {
    out.spare = std::move(out.values);
  }
  return out;
}

int64_t Linear::tokens_of(const StepContext& c, const LinearOperand& operand, bool is_gathered) const {
  const Tensor& local =
      operand.values ? operand.values.tensor() : operand.float8.codes.rowwise.codes.tensor();
  return local.rows() * (is_gathered ? c.tensor_parallel.size() : 1);
}

Allocation Linear::forward(const StepContext& c, const LinearOperand& x, LinearInput* saved) const {
  StepContext::Scope scope(c, name_);
  if (saved) *saved = {};
  const int64_t tokens = tokens_of(c, x, gathers_input(c));
  if (runs_in_blocks(c, Source::x, tokens)) return forward_in_blocks(c, x, saved);
  const Float8Product* product = float8();
  const bool travels_in_codes = product && product->plan_of(Source::x).travel == Travel::codes;
  Float8Allocation all;
  if (travels_in_codes && x.float8.codes) all = product->gather(c, x.float8.codes, Source::x, kForProduct);
  Allocation y = output(c, tokens);
  if (travels_in_codes) {
    if (!all) {
      const bool keeps = saved && keeps_codes(pieces_[0]);
      Float8Allocation mine = product->quantize(c, x.values, Source::x, {.product = true, .is_kept = keeps});
      if (keeps) saved->pieces.push_back(mine);
      all = product->gather(c, std::move(mine), Source::x, kForProduct);
    }
    product->forward(c, all, y);
  } else {
    forward_pieces(c, x, y, saved);
  }
  if (saved && !std::ranges::all_of(pieces_, keeps_codes)) saved->x = x.values;
  return finish(c, y);
}

bool Linear::runs_in_blocks(const StepContext& c, Source source, int64_t tokens) const {
  if (overlap_ == Overlap::bulk || c.tensor_parallel.size() == 1 || !is_one_product()) return false;
  const Float8Product* product = float8();
  return !product || (product->plan_of(source).travel != Travel::values &&
                      tokens % (kFloat8Rows * c.tensor_parallel.size()) == 0 &&
                      Float8Product::has_row_blocks(product->granularity_of(source)));
}

void Linear::block_product(const StepContext& c, MatmulKind kind, const Float8Allocation& codes,
                           const Allocation& values, RowRange rows, const Tensor& out) const {
  const Tensor block = out.slice(rows.begin, rows.end);
  const Float8Product* product = float8();
  if (!product) {
    return matmul(c.stream, {.kind = kind,
                             .a = values.tensor().slice(rows.begin, rows.end),
                             .b = c.parameters.weight(weight_),
                             .out = block});
  }
  const fp8::Float8Tensor operand = Float8Product::row_block(codes, rows);
  if (kind == MatmulKind::forward) return product->forward(c, operand, block);
  product->input_gradient(c, operand, block);
}

Allocation Linear::forward_in_blocks(const StepContext& c, const LinearOperand& x, LinearInput* saved) const {
  const LinearPiece& piece = pieces_[0];
  const bool gathers = gathers_input(c), keeps = saved && keeps_codes(piece);
  Float8Allocation codes;
  if (piece.float8) {
    codes = gathers && x.float8.codes ? x.float8.codes : input_codes(c, piece, x, x.values, keeps);
    if (keeps) saved->pieces.push_back(gathers ? codes : kept_part(c, piece, codes));
  }
  if (saved && !keeps) saved->x = x.values;
  const Allocation y = output(c, tokens_of(c, x, gathers));
  if (!gathers) {
    ScatteredRows parts = c.tensor_parallel.scatter_row_blocks(c.arena, y, name_);
    for (int i = 0; i < parts.count(); ++i) {
      block_product(c, MatmulKind::forward, codes, x.values, parts.block(i), y);
      parts.send(c.stream, i);
    }
    return parts.sum(c.stream, c.arena, MemoryCategory::activations);
  }
  const GatheredRows rows = piece.float8
                                ? piece.float8->gather_row_blocks(c, codes)
                                : c.tensor_parallel.gather_row_blocks(c.stream, c.arena, {x.values}, name_);
  if (piece.float8) codes = piece.float8->finish(c, rows, codes, Source::x, kForProduct);
  for (int i = 0; i < rows.count(); ++i)
    block_product(c, MatmulKind::forward, codes, rows.result(0), rows.wait(c.stream, i), y);
  return finish(c, y);
}

// A tensor-parallel rank's addend is gone once the sum is made.
Allocation Linear::output(const StepContext& c, int64_t tokens) const {
  const bool is_part = style_ == LinearStyle::row && c.tensor_parallel.size() > 1;
  return c.arena.allocate(name_, c.compute, {tokens, pieces_.back().rows.end},
                          is_part ? MemoryCategory::scratch : MemoryCategory::activations);
}

Allocation Linear::finish(const StepContext& c, const Allocation& y) const {
  if (bias_ >= 0) add_bias(c.stream, y, c.parameters.weight(bias_));
  if (style_ == LinearStyle::column) return y;
  return c.tensor_parallel.reduce_scatter_rows(c.stream, c.arena, y, name_, MemoryCategory::activations);
}

void Linear::forward_pieces(const StepContext& c, const LinearOperand& x, const Allocation& y,
                            LinearInput* saved) const {
  const Allocation input =
      gathers_input(c) ? c.tensor_parallel.gather_rows(c.stream, c.arena, x.values, name_) : x.values;
  for (const LinearPiece& piece : pieces_) {
    const bool keeps = saved && keeps_codes(piece);
    Float8Allocation q;
    if (piece.float8) {
      q = input_codes(c, piece, x, input, keeps);
      piece.float8->forward(c, q, y, columns_of(piece));
    } else {
      matmul(c.stream, {.kind = MatmulKind::forward,
                        .a = input,
                        .b = weight_of(c, piece),
                        .out = y,
                        .out_columns = columns_of(piece)});
    }
    if (saved && has_float8()) saved->pieces.push_back(keeps ? kept_part(c, piece, q) : Float8Allocation{});
  }
}

Float8Allocation Linear::input_codes(const StepContext& c, const LinearPiece& piece, const LinearOperand& x,
                                     const Tensor& values, bool keeps) const {
  const Float8Product::Use use{
      .product = true, .weight_gradient = keeps && !gathers_input(c), .is_kept = keeps};
  return x.float8.codes ? piece.float8->complete(c, x.float8, values, Source::x, use)
                        : piece.float8->quantize(c, values, Source::x, use);
}

Float8Allocation Linear::kept_part(const StepContext& c, const LinearPiece& piece,
                                   const Float8Allocation& all) const {
  Float8Allocation kept = all;
  if (kept.columnwise) kept.rowwise = {};
  if (!gathers_input(c)) return kept;
  const Tensor& codes = all.rowwise.codes;
  const int64_t rows = codes.rows() / c.tensor_parallel.size(), first = rows * c.tensor_parallel.rank();
  kept.rowwise.codes = c.activation(piece.float8->name() + ".x", codes.dtype, {rows, codes.cols()});
  copy(c.stream, codes.slice(first, first + rows), kept.rowwise.codes);
  return kept;
}

LinearInput Linear::keep(const StepContext& context, const Allocation& x) const {
  const StepContext c = context.recomputing();
  StepContext::Scope scope(c, name_);
  LinearInput kept;
  for (const LinearPiece& piece : pieces_) {
    if (!keeps_codes(piece)) kept.x = x;
    if (!has_float8()) continue;
    // The slot holds the amax of everything that forward gathered.
    kept.pieces.push_back(keeps_codes(piece) ? piece.float8->quantize(c, x, Source::x,
                                                                      {.product = gathers_input(c),
                                                                       .weight_gradient = !gathers_input(c)})
                                             : Float8Allocation{});
  }
  return kept;
}

LinearOperand Linear::place_output_gradient(const StepContext& c, const Allocation& dy) const {
  LinearOperand out{.values = dy};
  const Float8Product* product = float8();
  if (!product) return out;
  if (product->takes_codes(Source::dy))
    out.float8 = product->produced(c, dy.tensor().shape, Source::dy, MemoryCategory::scratch);
  if (out.float8.output.empty()) out.amax = product->amax_slot(c, Source::dy);
  return out;
}

LinearOperand Linear::received_output_gradient(const StepContext& c, Allocation dy) const {
  LinearOperand out{.values = std::move(dy)};
  if (const Float8Product* product = float8()) out.amax = product->amax_slot(c, Source::dy);
  if (!out.amax.empty()) fp8::amax(c.stream, out.values, out.amax);
  return out;
}

LinearOutputGradient Linear::output_gradient(const StepContext& c, const LinearOperand& operand) const {
  StepContext::Scope scope(c, name_);
  const Allocation& dy = operand.values;
  const Float8Product* product = float8();
  LinearOutputGradient out{.tokens = tokens_of(c, operand, gathers_gradient(c))};
  if (gathers_gradient(c) && runs_in_blocks(c, Source::dy, out.tokens)) {
    if (product) {
      const Float8Allocation mine = product->quantize(c, dy, Source::dy, kForProduct);
      out.arriving = product->gather_row_blocks(c, mine);
      out.pieces.push_back(product->finish(c, out.arriving, mine, Source::dy, kForProduct));
    } else {
      out.arriving = c.tensor_parallel.gather_row_blocks(c.stream, c.arena, {dy}, name_);
      out.dy = out.arriving.result(0);
    }
    return out;
  }
  if (product && product->plan_of(Source::dy).travel == Travel::codes) {
    out.pieces.push_back(product->gather(c, product->quantize(c, dy, Source::dy, kForProduct), Source::dy,
                                         {.product = true, .weight_gradient = true}));
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
    const Float8Product::Use use{.product = true, .weight_gradient = piece.float8->weight_gradient_is_fp8()};
    out.pieces.push_back(operand.float8.codes
                             ? piece.float8->complete(c, operand.float8, all, Source::dy, use)
                             : piece.float8->quantize(c, all, columns_of(piece), Source::dy, use));
  }
  if (wants_dy) out.dy = all;
  return out;
}

Allocation Linear::backward(const StepContext& c, LinearOutputGradient& gradient, LinearInput saved) const {
  if (gradient.arriving.count() > 0) {
    Allocation dx = input_gradient(c, gradient);
    weight_gradient(c, gradient, saved);
    return dx;
  }
  if (!gathers_input(c) || c.deferred) {
    weight_gradient(c, gradient, saved);
    saved = {};
    return input_gradient(c, gradient);
  }
  StepContext::Scope scope(c, name_);
  InputGathering x = start_gather(c, saved);
  TensorParallelGroup::Transfer dx =
      c.tensor_parallel.start_reduce_scatter_rows(c.stream, c.arena, input_product(c, gradient), name_);
  accumulate(c, gradient, saved, std::move(x));
  return dx.wait(c.stream);
}

Allocation Linear::input_gradient(const StepContext& c, LinearOutputGradient& gradient) const {
  StepContext::Scope scope(c, name_);
  Allocation dx = input_product(c, gradient);
  return style_ == LinearStyle::column ? c.tensor_parallel.reduce_scatter_rows(c.stream, c.arena, dx, name_)
                                       : dx;
}

Allocation Linear::input_product(const StepContext& c, LinearOutputGradient& gradient) const {
  Allocation dx =
      c.scratch(name_ + ".dx", c.compute, {gradient.tokens, c.parameters.shard(weight_).slice[1]});
  if (GatheredRows& rows = gradient.arriving; rows.count() > 0) {
    Float8Allocation codes = gradient.pieces.empty() ? Float8Allocation{} : gradient.pieces[0];
    for (int i = 0; i < rows.count(); ++i)
      block_product(c, MatmulKind::input_gradient, codes, gradient.dy, rows.wait(c.stream, i), dx);
    if (const Float8Product* product = float8())
      gradient.pieces[0] = product->finish(c, rows, codes, Source::dy, kForWeightGradient);
    rows = {};
    return dx;
  }
  // Several pieces add up in f32 and are rounded once, as one product would be.
  Allocation sum = is_one_product() ? dx : c.scratch(name_ + ".dx sum", DType::f32, dx.tensor().shape);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const LinearPiece& piece = pieces_[i];
    if (piece.float8) {
      piece.float8->input_gradient(c, gradient.pieces[i], sum, i > 0);
      continue;
    }
    matmul(c.stream, {.kind = MatmulKind::input_gradient,
                      .a = gradient.dy,
                      .b = weight_of(c, piece),
                      .out = sum,
                      .accumulate = i > 0,
                      .a_columns = columns_of(piece)});
  }
  if (!is_one_product()) cast(c.stream, sum, dx);
  return dx;
}

void Linear::weight_gradient(const StepContext& context, const LinearOutputGradient& gradient,
                             const LinearInput& saved) const {
  if (context.deferred) {
    context.deferred->push_back(
        [this, gradient, saved](const StepContext& later) { weight_gradient(later, gradient, saved); });
    return;
  }
  StepContext::Scope scope(context, name_);
  accumulate(context, gradient, saved, start_gather(context, saved));
}

Linear::InputGathering Linear::start_gather(const StepContext& c, const LinearInput& saved) const {
  InputGathering out;
  if (!gathers_input(c)) return out;
  if (saved.x) out.x = c.tensor_parallel.start_gather_rows(c.stream, c.arena, saved.x, name_);
  for (size_t i = 0; i < saved.pieces.size(); ++i) {
    const LinearPiece& piece = pieces_[i];
    const bool is_read = piece.float8 && piece.float8->weight_gradient_is_fp8() && keeps_codes(piece);
    out.pieces.push_back(is_read ? piece.float8->start_gather(c, saved.pieces[i])
                                 : Float8Product::Gathering{});
  }
  return out;
}

void Linear::accumulate(const StepContext& context, const LinearOutputGradient& gradient,
                        const LinearInput& saved, InputGathering gathering) const {
  const StepContext c = context.recomputing();
  const Allocation x = gathers_input(c) ? gathering.x.wait(c.stream) : saved.x;
  const Fsdp::Gradient dw = c.parameters.gradient(weight_);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const LinearPiece& piece = pieces_[i];
    const Tensor rows = dw.tensor.slice(piece.rows.begin, piece.rows.end);
    if (piece.float8 && piece.float8->weight_gradient_is_fp8()) {
      const Float8Allocation q =
          !keeps_codes(piece) ? piece.float8->quantize(c, x, Source::x, kForWeightGradient)
          : gathers_input(c)
              ? piece.float8->finish(c, std::move(gathering.pieces[i]), Source::x, kForWeightGradient)
              : saved.pieces[i];
      piece.float8->weight_gradient(c, gradient.pieces[i], q, rows, dw.accumulate);
      continue;
    }
    matmul(c.stream, {.kind = MatmulKind::weight_gradient,
                      .a = gradient.dy,
                      .b = x,
                      .out = rows,
                      .accumulate = dw.accumulate,
                      .a_columns = columns_of(piece)});
  }
  if (bias_ >= 0) bias_gradient(c.stream, gradient.dy, c.parameters.zeroed_gradient(bias_));
}

}  // namespace ottava
