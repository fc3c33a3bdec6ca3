#include "models/llama/llama_head.h"

#include <algorithm>

#include "core/ops/cross_entropy.h"
#include "core/ops/elementwise.h"
#include "core/ops/matmul/matmul.h"
#include "core/ops/norm/rms_norm.h"

namespace ottava {

LlamaHead::LlamaHead(const LlamaConfig& config, int norm, int output, Output precision, Options options)
    : norm_(norm),
      output_(output),
      precision_(std::move(precision)),
      dim_(config.dim),
      options_(options),
      norm_eps_(config.norm_eps) {}

LlamaHead::Normalised LlamaHead::normalise(const StepContext& c, ResidualStream in) const {
  StepContext::Scope scope(c, "norm");
  Normalised out;
  const Tensor& x = in.sum;
  out.saved.x = in.delta ? in.delta : in.sum;
  out.saved.rstd = c.activation("rstd", DType::f32, {x.rows()});
  const bool is_part = c.tensor_parallel.size() > 1;
  Allocation y = c.arena.allocate("norm", c.compute, x.shape,
                                  is_part ? MemoryCategory::scratch : MemoryCategory::activations);
  RmsNormForward args{
      .x = x, .weight = c.parameters.weight(norm_), .y = y, .rstd = out.saved.rstd, .eps = norm_eps_};
  if (in.delta) args.residual = args.sum = in.delta.tensor();
  rms_norm_forward(c.stream, args);
  out.y = c.tensor_parallel.gather_rows(c.stream, c.arena, y, "norm", MemoryCategory::activations);
  return out;
}

// Maximum, sum and target's logit of each row, over the whole vocabulary.
void LlamaHead::softmax(const StepContext& c, const CrossEntropy& chunk) const {
  const TensorParallelGroup& tp = c.tensor_parallel;
  if (!options_.loss_parallel && tp.size() > 1) {
    Allocation logits = tp.gather_columns(c.stream, c.arena, chunk.logits, "logits");
    CrossEntropy whole = chunk;
    whole.logits = logits;
    whole.vocab_begin = 0;
    whole.valid_columns = logits.tensor().cols();
    cross_entropy_max(c.stream, whole);
    cross_entropy_sum(c.stream, whole);
    return;
  }
  cross_entropy_max(c.stream, chunk);
  tp.all_reduce(c.stream, chunk.row_max, ReduceOp::max, "cross_entropy.max");
  cross_entropy_sum(c.stream, chunk);
  tp.all_reduce(c.stream, chunk.row_sum, ReduceOp::sum, "cross_entropy.sum");
  tp.all_reduce(c.stream, chunk.row_target, ReduceOp::sum, "cross_entropy.target");
}

void LlamaHead::chunks(const StepContext& c, const Normalised& in, const Loss& loss, Pass pass) const {
  const bool backward = pass == Pass::training;
  const Tensor y = in.y;
  const int64_t rows = y.rows(), vocab = c.parameters.shard(output_).slice[0],
                chunk = std::min(rows, options_.chunk_rows);
  const int64_t columns = std::max(vocab, precision_.padded_rows);
  Allocation scratch_losses;
  if (loss.token_losses.empty()) scratch_losses = c.scratch("losses", DType::f32, {rows});
  const Tensor losses = scratch_losses ? scratch_losses.tensor() : loss.token_losses;
  Allocation logits = c.scratch("logits", DType::f32, {chunk, columns});
  Allocation statistics = c.scratch("softmax statistics", DType::f32, {3, chunk});
  Allocation dlogits;
  if (backward) dlogits = c.scratch("dlogits", c.compute, {chunk, columns});
  Allocation z_losses;
  if (!loss.z_loss_sum.empty()) z_losses = c.scratch("z-losses", DType::f32, {rows});
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t n = std::min(chunk, rows - begin);
    auto statistic = [&](int64_t i) {
      return statistics.tensor().slice(i, i + 1).reshape({chunk}).slice(0, n);
    };
    CrossEntropyBackward ce{.forward = {.logits = logits.tensor().slice(0, n),
                                        .targets = loss.targets.slice(begin, begin + n),
                                        .row_max = statistic(0),
                                        .row_sum = statistic(1),
                                        .row_target = statistic(2),
                                        .vocab_begin = vocab * c.tensor_parallel.rank(),
                                        .valid_columns = vocab},
                            .losses = losses.slice(begin, begin + n),
                            .grad_scale = loss.grad_scale,
                            .z_loss_weight = options_.z_loss_weight};
    if (z_losses) ce.z_losses = z_losses.tensor().slice(begin, begin + n);
    if (backward) ce.dlogits = dlogits.tensor().slice(0, n);
    const Tensor y_chunk = y.slice(begin, begin + n);
    Float8Allocation kept;
    project(c, y_chunk, ce.forward.logits, backward, kept);
    differentiate(c, ce);
    if (backward) project_backward(c, ce.dlogits, kept, y_chunk);
  }
  sum_into(c.stream, losses, loss.sum);
  if (z_losses) sum_into(c.stream, z_losses, loss.z_loss_sum);
  if (!loss.sequence_sums.empty()) sum_sequences(c, losses, loss.sequence_sums);
}

void LlamaHead::differentiate(const StepContext& c, const CrossEntropyBackward& chunk) const {
  StepContext::Scope scope(c, "cross_entropy");
  if (c.tensor_parallel.size() == 1) return cross_entropy(c.stream, chunk);
  softmax(c, chunk.forward);
  cross_entropy_backward(c.stream, chunk);
}

void LlamaHead::sum_sequences(const StepContext& c, const Tensor& losses, const Tensor& sums) const {
  fill_zero(c.stream, sums);
  const int64_t sequences = sums.numel(), length = losses.numel() / sequences;
  for (int64_t b = 0; b < sequences; ++b)
    sum_into(c.stream, losses.slice(b * length, (b + 1) * length), sums.slice(b, b + 1));
}

void LlamaHead::project(const StepContext& c, const Tensor& y, const Tensor& logits, bool keep,
                        Float8Allocation& kept) const {
  StepContext::Scope scope(c, "output");
  if (!precision_.float8) {
    return matmul(c.stream,
                  {.kind = MatmulKind::forward, .a = y, .b = c.parameters.weight(output_), .out = logits});
  }
  const Float8Product& product = *precision_.float8;
  c.float8->begin_product(c.stream, product.index());  // each chunk has its own scale
  Float8Allocation x =
      product.quantize(c, y, Float8Product::Source::x,
                       {.product = true, .weight_gradient = keep && product.weight_gradient_is_fp8()});
  product.forward(c, x, logits);
  if (keep && product.weight_gradient_is_fp8()) kept = std::move(x);
}

// The rows of y are no longer needed, so their gradient takes their place.
void LlamaHead::project_backward(const StepContext& c, const Tensor& dlogits, const Float8Allocation& kept,
                                 const Tensor& y) const {
  StepContext::Scope scope(c, "output");
  const Fsdp::Gradient dw = c.parameters.gradient(output_);
  const bool is_padded = dlogits.cols() > dw.tensor.rows();
  Allocation padded;
  if (is_padded) padded = c.scratch("output.padded gradient", DType::f32, {dlogits.cols(), dim_});
  const Tensor out = is_padded ? padded.tensor() : dw.tensor;
  const bool accumulate = dw.accumulate && !is_padded;
  Float8Allocation dy;
  if (precision_.float8) {
    dy = precision_.float8->quantize(
        c, dlogits, Float8Product::Source::dy,
        {.product = true, .weight_gradient = precision_.float8->weight_gradient_is_fp8()});
  }
  if (precision_.float8 && precision_.float8->weight_gradient_is_fp8()) {
    precision_.float8->weight_gradient(c, dy, kept, out, accumulate);
  } else {
    matmul(c.stream,
           {.kind = MatmulKind::weight_gradient, .a = dlogits, .b = y, .out = out, .accumulate = accumulate});
  }
  if (is_padded) {
    const Tensor rows = out.slice(0, dw.tensor.rows());
    if (dw.accumulate) {
      add(c.stream, dw.tensor, rows, dw.tensor);
    } else {
      cast(c.stream, rows, dw.tensor);
    }
  }
  if (precision_.float8) return precision_.float8->input_gradient(c, dy, y);
  matmul(c.stream,
         {.kind = MatmulKind::input_gradient, .a = dlogits, .b = c.parameters.weight(output_), .out = y});
}

LinearOperand LlamaHead::forward_backward(const StepContext& c, ResidualStream in, const Loss& loss,
                                          const Linear* reader) const {
  Normalised normalised = normalise(c, std::move(in));
  chunks(c, normalised, loss, Pass::training);
  Allocation dy = c.tensor_parallel.reduce_scatter_rows(c.stream, c.arena, normalised.y, "norm");
  normalised.y.release();
  return StreamNorm("norm", norm_, norm_eps_).backward(c, dy, normalised.saved, {}, reader);
}

void LlamaHead::evaluate(const StepContext& c, ResidualStream in, const Loss& loss) const {
  chunks(c, normalise(c, std::move(in)), loss, Pass::evaluation);
}

void LlamaHead::logits(const StepContext& c, ResidualStream in, const Tensor& out) const {
  Normalised normalised = normalise(c, std::move(in));
  StepContext::Scope scope(c, "output");
  matmul(c.stream,
         {.kind = MatmulKind::forward, .a = normalised.y, .b = c.parameters.weight(output_), .out = out});
}

}  // namespace ottava
