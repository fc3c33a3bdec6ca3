#include "core/ops/cross_entropy.h"

#include <cassert>
#include <cmath>

#include "core/check.h"
#include "core/ops/cross_entropy_kernels.h"
#include "core/run_op.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

void check(std::string_view op, const CrossEntropy& a) {
  if (a.logits.dtype != DType::f32 || a.logits.shape.rank() != 2) {
    fail<ShapeError>(op, "logits is {}, expected f32 [n, V]", describe(a.logits));
  }
  const int64_t rows = a.logits.rows();
  check_tensor(op, "targets", a.targets, DType::i32, {rows});
  check_tensor(op, "row_max", a.row_max, DType::f32, {rows});
  check_tensor(op, "row_sum", a.row_sum, DType::f32, {rows});
  check_tensor(op, "row_target", a.row_target, DType::f32, {rows});
  if (a.valid_columns < 0 || a.valid_columns > a.logits.cols()) {
    fail<ShapeError>(op, "valid_columns is {}, expected 0 to {} (the columns of logits)", a.valid_columns,
                     a.logits.cols());
  }
  if (a.vocab_begin < 0) fail<ShapeError>(op, "vocab_begin is {}, expected a global token id", a.vocab_begin);
}

void check(std::string_view op, const CrossEntropyBackward& a) {
  check(op, a.forward);
  check_tensor(op, "losses", a.losses, DType::f32, {a.forward.logits.rows()});
  check_optional(op, "z_losses", a.z_losses, DType::f32, {a.forward.logits.rows()});
  if (a.dlogits.empty()) return;
  check_float(op, "dlogits", a.dlogits);
  check_tensor(op, "dlogits", a.dlogits, a.dlogits.dtype, a.forward.logits.shape);
  check_tensor(op, "grad_scale", a.grad_scale, DType::f32, {1});
}

// log sum + (max - target): the difference first, so that large logits do not swallow the logarithm.
void backward_row(const CrossEntropyBackward& a, int64_t i) {
  const int32_t target = a.forward.targets.as<int32_t>()[i];
  assert(target >= 0 || target == kIgnoreIndex);  // the loader has checked every id
  const bool counts = target != kIgnoreIndex;
  const double log_sum = std::log(static_cast<double>(a.forward.row_sum.as<float>()[i])),
               max = a.forward.row_max.as<float>()[i], lse = log_sum + max, c = a.z_loss_weight;
  a.losses.as<float>()[i] =
      counts ? static_cast<float>(log_sum + (max - a.forward.row_target.as<float>()[i])) : 0.0f;
  if (!a.z_losses.empty()) a.z_losses.as<float>()[i] = counts ? static_cast<float>(c * lse * lse) : 0.0f;
  if (a.dlogits.empty()) return;
  const float scale = *a.grad_scale.as<float>();
  cpu::cross_entropy_kernels().backward[a.dlogits.dtype](
      a, i, c == 0 ? scale : static_cast<float>(scale * (1 + 2 * c * lse)));
}

/// Calls body(Rows) on the threads' shares of the rows.
template <class Body>
void over_rows(const CrossEntropy& a, Body&& body) {
  parallel_for(a.logits.rows(), 1, [&](int64_t begin, int64_t end) {
    body(cpu::Rows{begin, end, a.logits.cols()});
  });
}

}  // namespace

void cross_entropy_max(Stream& stream, const CrossEntropy& args) {
  check("cross_entropy_max", args);
  const auto on_cpu = [&] {
    over_rows(args, [&](cpu::Rows rows) { cpu::cross_entropy_kernels().max(args, rows); });
  };
  run_op(stream, moving("cross_entropy_max", args.logits.bytes()), cross_entropy_max, on_cpu,
         cuda::cross_entropy_max, args);
}

void cross_entropy_sum(Stream& stream, const CrossEntropy& args) {
  check("cross_entropy_sum", args);
  const auto on_cpu = [&] {
    over_rows(args, [&](cpu::Rows rows) { cpu::cross_entropy_kernels().sum(args, rows); });
  };
  run_op(stream, moving("cross_entropy_sum", args.logits.bytes()), cross_entropy_sum, on_cpu,
         cuda::cross_entropy_sum, args);
}

void cross_entropy_backward(Stream& stream, const CrossEntropyBackward& args) {
  check("cross_entropy_backward", args);
  const auto on_cpu = [&] {
    over_rows(args.forward, [&](cpu::Rows rows) {
      for (int64_t i = rows.begin; i < rows.end; ++i) backward_row(args, i);
    });
  };
  const int64_t logits = args.dlogits.empty() ? 0 : args.forward.logits.bytes() + args.dlogits.bytes(),
                rows = args.losses.bytes() + (args.z_losses.empty() ? 0 : args.z_losses.bytes());
  run_op(stream, moving("cross_entropy_backward", logits + rows), cross_entropy_backward, on_cpu,
         cuda::cross_entropy_backward, args);
}

void cross_entropy(Stream& stream, const CrossEntropyBackward& args) {
  check("cross_entropy", args);
  const auto on_cpu = [&] {
    over_rows(args.forward, [&](cpu::Rows rows) {
      const auto& kernels = cpu::cross_entropy_kernels();
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        cpu::Rows row{i, i + 1, rows.cols};
        kernels.max(args.forward, row);
        kernels.sum(args.forward, row);
        backward_row(args, i);
      }
    });
  };
  // A GPU has some 500 rows under way, and caches of some 50 MB: of longer rows the second pass comes from
  // memory, too.
  constexpr int64_t kCachedRow = 96 << 10;
  const Tensor& logits = args.forward.logits;
  const bool again = !args.dlogits.empty() && logits.cols() * size_of(logits.dtype) > kCachedRow;
  const int64_t bytes = (again ? 2 : 1) * logits.bytes() + args.dlogits.bytes();
  run_op(stream, moving("cross_entropy", bytes), cross_entropy, on_cpu, cuda::cross_entropy, args);
}

}  // namespace ottava
