#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "core/dtype.h"

// The only place that knows oneDNN; it adapts versions 2 and 3.
namespace ottava::cpu {

/// One matrix product C[m,n] (+)= (scale) A[m,k] B[k,n] with f32 sums, scaled before they are rounded or
/// added. A and B share `input`. A stored transposed is a [k,m] array, B stored transposed an [n,k] one; the
/// leading dimensions are those of the stored arrays.
struct GemmProblem {
  enum class Stored { plain, transposed };
  enum class Result { overwrite, accumulate };
  enum class Scale { none, at_run_time };

  DType input = DType::f32, output = DType::f32;
  Stored a = Stored::plain, b = Stored::plain;
  Result result = Result::overwrite;
  Scale scale = Scale::none;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  auto operator<=>(const GemmProblem&) const = default;
};

/// A oneDNN matmul primitive, made for one problem and `threads` threads. Inside a parallel region make it
/// with threads = 1 and as many `lanes` as there are threads: lanes may run at the same time, each with its
/// own scratch.
class Gemm {
 public:
  /// Throws DeviceError if oneDNN refuses the problem, ShapeError for a dtype other than f32 and bf16.
  Gemm(const GemmProblem& problem, int threads, int lanes);
  Gemm(Gemm&&) noexcept;
  ~Gemm();

  /// Bytes of scratch that one lane's run() writes to.
  int64_t scratch_bytes() const;
  /// `scale`: the factor of a problem that has one, else null. Throws DeviceError if oneDNN fails.
  void run(int lane, const void* a, const void* b, void* c, void* scratch,
           const float* scale = nullptr) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Scratch of the primitive that Gemm(problem, threads, 1) would make, without making it. Throws DeviceError
/// if oneDNN refuses the problem, as gemm_takes_scale() does.
int64_t gemm_scratch_bytes(const GemmProblem& problem, int threads);

/// True if oneDNN does the scaled problem as fast as the plain one; its slower implementations cost more than
/// a separate pass.
bool gemm_takes_scale(const GemmProblem& problem);

/// True if oneDNN multiplies bf16 with bf16 instructions: AVX512-BF16 or AMX, unless DNNL_MAX_CPU_ISA forbids
/// them. With plain AVX-512 oneDNN emulates them at a quarter of the f32 rate; with less it has no bf16
/// matmul at all.
bool dnnl_multiplies_bf16();
/// True if it does so with AMX, which is several times faster than f32; AVX512-BF16 without AMX is not faster
/// everywhere.
bool dnnl_uses_amx();
/// "oneDNN 2.6.3".
std::string dnnl_version_text();

}  // namespace ottava::cpu
