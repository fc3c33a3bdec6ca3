#include "core/ops/matmul/matmul.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/cpu/matmul_cache.h"
#include "core/ops/matmul/matmul_kernels.h"
#include "core/ops/matmul/matmul_pairs.h"
#include "core/round_up.h"
#include "core/run_op.h"
#include "core/stopwatch.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

using cpu::GemmProblem;
constexpr std::string_view kOp = "matmul";
constexpr int64_t kMirrorRows = 64;

GemmProblem problem_of(const Matmul& args) {
  using Stored = GemmProblem::Stored;
  const bool a_transposed = args.kind == MatmulKind::weight_gradient,
             b_transposed = args.kind == MatmulKind::forward;
  const MatrixRows a = a_of(args);
  return {.input = args.a.dtype,
          .output = args.out.dtype,
          .a = a_transposed ? Stored::transposed : Stored::plain,
          .b = b_transposed ? Stored::transposed : Stored::plain,
          .result = args.accumulate ? GemmProblem::Result::accumulate : GemmProblem::Result::overwrite,
          .scale = args.scale ? GemmProblem::Scale::at_run_time : GemmProblem::Scale::none,
          .m = a_transposed ? a.cols : a.rows,
          .n = b_transposed ? args.b.rows() : args.b.cols(),
          .k = a_transposed ? a.rows : a.cols,
          .lda = a.stride,
          .ldb = args.b.cols(),
          .ldc = args.out.cols()};
}

GemmProblem plain_problem_of(Matmul args) {
  args.scale = nullptr;
  return problem_of(args);
}

void check(const Matmul& args) {
  check_float(kOp, "a", args.a);
  if (args.b.dtype != args.a.dtype) {
    fail<ShapeError>(kOp, "b is {}, expected {} (like a)", describe(args.b), name_of(args.a.dtype));
  }
  check_float(kOp, "out", args.out);
  if (args.a.dtype == DType::f32 && args.out.dtype != DType::f32) {
    fail<ShapeError>(kOp, "out is {}, expected f32 (like a)", describe(args.out));
  }
  if (args.accumulate && args.out.dtype != DType::f32) {
    fail<ShapeError>(kOp, "out is {}, accumulating needs f32", describe(args.out));
  }
  for (const Tensor* tensor : {&args.a, &args.b, &args.out}) {
    if (tensor->numel() == 0) {
      fail<ShapeError>(kOp, "a {}, b {}, out {}: each needs at least one element", to_string(args.a.shape),
                       to_string(args.b.shape), to_string(args.out.shape));
    }
  }
  if (args.result == MatmulResult::symmetric &&
      (args.a.data != args.b.data || args.a.shape != args.b.shape || args.accumulate || args.scale ||
       !args.a_columns.is_all() || !args.out_columns.is_all())) {
    fail<ShapeError>(kOp,
                     "a {}, b {}: a symmetric result is of one tensor and itself, neither accumulated nor "
                     "scaled, without blocks of columns",
                     describe(args.a), describe(args.b));
  }
  const MatrixRows a = a_of(args), out = out_of(args);
  const GemmProblem p = problem_of(args);
  const int64_t k_of_b = p.b == GemmProblem::Stored::transposed ? args.b.cols() : args.b.rows();
  if (k_of_b != p.k) {
    fail<ShapeError>(kOp, "inner dimensions differ: a {}, b {} ({} vs {})", to_string(a.shape()),
                     to_string(args.b.shape), p.k, k_of_b);
  }
  if (out.shape() != Shape{p.m, p.n}) {
    fail<ShapeError>(kOp, "out is {} {}, expected [{}, {}] from a {}, b {}", name_of(out.dtype),
                     to_string(out.shape()), p.m, p.n, to_string(a.shape()), to_string(args.b.shape));
  }
}

bool widens(const Stream& stream, const Matmul& args) {
  return args.a.dtype == DType::bf16 && stream.matmul_cache().products().matmul == cpu::Bf16Products::widened;
}

/// Measured on two cores: with AMX products of 1.5 to 5 GFLOP take 0.85 to 0.95 of oneDNN's time, larger ones
/// 0.6 to 0.85, smaller ones as long or longer, but for gradients of weights whose result the threads' caches
/// hold, 0.7 to 0.9. With AVX512-BF16 on Zen 4 those of 4 GFLOP and more take 0.93 to 1.0 of it, smaller ones
/// 0.95 to 1.06, but gradients of weights from 1 GFLOP on, of one thread, 0.88 to 0.96.
bool in_pairs(const GemmProblem& p) {
  if (!cpu::pairs_take(p)) return false;
  const double least = cpu::multiplies_bf16_by_amx()            ? (cpu::pairs_sum_in_cache(p) ? 2.5e8 : 1.5e9)
                       : p.a == GemmProblem::Stored::transposed ? 1e9
                                                                : 4e9;
  return 2.0 * p.m * p.n * p.k >= least;
}

constexpr int64_t kLeastBand = 128;  // fewer rows than that are slower by more than they save

// Calls body(problem, elements before what it reads of a, of b, and before what it writes).
template <class Body>
void for_each_problem(const Matmul& args, Body&& body) {
  const GemmProblem whole = problem_of(args);
  if (args.result == MatmulResult::any) return body(whole, int64_t{0}, int64_t{0}, int64_t{0});
  for_each_band(whole.m, kLeastBand, [&](int64_t begin, int64_t end) {
    GemmProblem band = whole;
    band.m = end - begin;
    band.n = whole.n - begin;
    body(band, begin * (whole.a == GemmProblem::Stored::transposed ? 1 : whole.lda),
         begin * (whole.b == GemmProblem::Stored::transposed ? whole.ldb : 1), begin * (whole.ldc + 1));
  });
}

void multiply_directly(Stream& stream, const Matmul& args) {
  for_each_problem(args, [&](const GemmProblem& problem, int64_t a, int64_t b, int64_t out) {
    if (in_pairs(problem))
      return cpu::matmul_pairs(problem, a_of(args).at(a), args.b.at(b), out_of(args).at(out), args.scale,
                               cpu::matmul_workspace(stream, cpu::matmul_pairs_workspace_bytes(problem)));
    const cpu::Gemm& gemm = stream.matmul_cache().whole(problem, parallel_threads());
    gemm.run(0, a_of(args).at(a), args.b.at(b), out_of(args).at(out),
             cpu::matmul_workspace(stream, gemm.scratch_bytes()), args.scale);
  });
}

void matmul_on_cpu(Stream& stream, const Matmul& args) {
  widens(stream, args) ? cpu::matmul_widened(stream, args) : multiply_directly(stream, args);
  if (args.result == MatmulResult::any) return;
  parallel_for_each(pieces_of(args.out.rows(), kMirrorRows), [&](int64_t block) {
    const int64_t begin = block * kMirrorRows, end = std::min(begin + kMirrorRows, args.out.rows());
    cpu::matmul_kernels().mirror[args.out.dtype](args.out, {begin, end, args.out.cols()});
  });
}

int64_t workspace_on_cpu(const Stream& stream, const Matmul& args) {
  if (widens(stream, args)) return cpu::matmul_widened_workspace_bytes(args);
  int64_t most = 0;
  for_each_problem(args, [&](const GemmProblem& problem, int64_t, int64_t, int64_t) {
    most = std::max(most, in_pairs(problem) ? cpu::matmul_pairs_workspace_bytes(problem)
                                            : cpu::gemm_scratch_bytes(problem, parallel_threads()));
  });
  return most;
}

}  // namespace

void* cpu::matmul_workspace(const Stream& stream, int64_t bytes) {
  const Tensor& workspace = stream.matmul_cache().workspace();
  if (bytes > 0 && workspace.bytes() < bytes) {
    fail<MemoryError>(kOp,
                      "workspace has {} bytes, {} are needed: give set_matmul_workspace the largest "
                      "matmul_workspace_bytes of all products",
                      workspace.bytes(), bytes);
  }
  return workspace.data;
}

bool matmul_takes_scale(Stream& stream, const Matmul& args) {
  if (stream.target().type == DeviceType::cuda || args.a.dtype != DType::bf16 || widens(stream, args))
    return false;
  if (in_pairs(plain_problem_of(args))) return true;
  return stream.type() == DeviceType::cpu ? stream.matmul_cache().takes_scale(plain_problem_of(args))
                                          : cpu::gemm_takes_scale(plain_problem_of(args));
}

std::string_view name_of(MatmulKind kind) {
  return kind == MatmulKind::forward          ? "forward"
         : kind == MatmulKind::input_gradient ? "input gradient"
                                              : "weight gradient";
}

void matmul(Stream& stream, const Matmul& args) {
  check(args);
  if (args.scale && !matmul_takes_scale(stream, args)) {
    fail<ShapeError>(kOp, "the product {} x {} takes no scale here: matmul_takes_scale tells",
                     describe(args.a), describe(args.b));
  }
  if (stream.type() == DeviceType::meta)
    stream.recorder().need_workspace(matmul_workspace_bytes(stream, args));
  const GemmProblem p = problem_of(args);
  const bool is_symmetric = args.result == MatmulResult::symmetric;
  run_op(stream,
         {.op = kOp,
          .precision = args.a.dtype == DType::f32 ? Precision::fp32 : Precision::bf16,
          .flops = (is_symmetric ? static_cast<double>(p.m + 1) : 2.0 * p.m) * p.n * p.k,
          .bytes = a_of(args).bytes() + args.b.bytes() + (args.accumulate ? 2 : 1) * out_of(args).bytes(),
          .variant = is_symmetric ? "symmetric" : name_of(args.kind)},
         matmul, matmul_on_cpu, cuda::matmul, args);
}

int64_t matmul_workspace_bytes(Stream& stream, const Matmul& args) {
  check(args);
  return stream.target().type == DeviceType::cuda ? cuda::kMatmulWorkspaceBytes
                                                  : workspace_on_cpu(stream, args);
}

void set_matmul_workspace(Stream& stream, Tensor workspace) {
  check_tensor("set_matmul_workspace", "workspace", workspace, DType::u8, {workspace.numel()});
  const uintptr_t alignment = stream.type() == DeviceType::cuda ? 256 : 64;
  if (reinterpret_cast<uintptr_t>(workspace.data) % alignment != 0) {
    fail<MemoryError>("set_matmul_workspace", "workspace at {} is not aligned to {} bytes", workspace.data,
                      alignment);
  }
  const auto on_cpu = [&] { stream.matmul_cache().set_workspace(workspace); };
  run_where(
      stream, on_cpu, cuda::set_matmul_workspace, [] {}, workspace);
}

void add_bias(Stream& stream, const Tensor& y, const Tensor& bias) {
  check_float("add_bias", "y", y);
  check_tensor("add_bias", "bias", bias, y.dtype, {y.cols()});
  const auto on_cpu = [&] {
    auto kernel = cpu::matmul_kernels().add_bias[y.dtype];
    parallel_for(y.rows(), 16, [&](int64_t begin, int64_t end) { kernel(y, bias, {begin, end, y.cols()}); });
  };
  run_op(stream, moving("add_bias", 2 * y.bytes()), add_bias, on_cpu, cuda::add_bias, y, bias);
}

void bias_gradient(Stream& stream, const Tensor& dy, const Tensor& dbias) {
  check_float("bias_gradient", "dy", dy);
  check_tensor("bias_gradient", "dbias", dbias, DType::f32, {dy.cols()});
  const auto on_cpu = [&] {
    auto kernel = cpu::matmul_kernels().bias_gradient[dy.dtype];
    parallel_for(dy.cols(), 64, [&](int64_t begin, int64_t end) {
      kernel(dy, dbias, {begin, end, dy.rows(), dy.cols()});
    });
  };
  run_op(stream, moving("bias_gradient", dy.bytes()), bias_gradient, on_cpu, cuda::bias_gradient, dy, dbias);
}

std::string matmul_backend_description() {
  if (cpu::multiplies_bf16_directly()) {
    return fmt::format("{}, bf16 {}", cpu::dnnl_version_text(),
                       cpu::dnnl_uses_amx() ? "with AMX" : "with AVX-512");
  }
  return fmt::format("{}, bf16 widened to f32 panels (no bf16 instructions to use; products stay exact)",
                     cpu::dnnl_version_text());
}

namespace {
/// The best of at most 20 calls in 0.1 s, after one that is not counted.
template <class Work>
double best_seconds(const Work& work) {
  work();
  double best = std::numeric_limits<double>::infinity(), total = 0;
  for (int i = 0; i < 20 && total < 0.1; ++i) {
    const Stopwatch watch;
    work();
    const double seconds = watch.seconds();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

}  // namespace

double measure_multiplier_peak_flops() {
  constexpr int64_t kM = 112, kN = cpu::kPanelColumns, kK = 256, kRepeats = 200;
  const int64_t lanes = parallel_threads();
  std::vector<float> a(kM * kK, 0.5f), b(kN * kK, 0.5f), c(lanes * kM * kN);
  const auto multiply = cpu::matmul_kernels().multiply;
  const double seconds = best_seconds([&] {
    parallel_for_index(lanes, 1, [&](int64_t lane) {
      for (int64_t i = 0; i < kRepeats; ++i)
        multiply({.a = a.data(),
                  .a_row = kK,
                  .a_depth = 1,
                  .b = b.data(),
                  .b_panel = kN * kK,
                  .c = c.data() + lane * kM * kN,
                  .c_row = kN,
                  .m = kM,
                  .n = kN,
                  .k = kK});
    });
  });
  return 2.0 * (kM * kN * kK * kRepeats * lanes) / seconds;
}

}  // namespace ottava
