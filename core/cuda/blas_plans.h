#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava::cuda {

/// One matrix product of cuBLASLt: D[m,n] = op(A) op(B) (+ D), column-major, sums in f32. A row-major matrix
/// is its column-major transpose: the callers swap operands accordingly.
struct BlasProblem {
  enum class Operand : uint8_t { plain, transposed };
  enum class Result : uint8_t { overwrite, accumulate };
  /// How a one-byte operand is scaled: by one f32; by one per row of op(A) or column of op(B); by one per 128
  /// elements of the contraction, or per 128 x 128; by an e8m0 per 32. Layouts are those of
  /// core/float8/granularity.h; addresses are aligned to 16 bytes.
  enum class Scale : uint8_t { none, tensor, outer, block_1x128, block_128x128, block_1x32 };
  /// For fp8 on sm_89 and sm_90, whose tensor cores add with 14 bits: whether sums are promoted to f32 every
  /// hundred or so products (on sm_90 after every 128), or stay in the tensor cores throughout.
  enum class Sums : uint8_t { promoted, fast };

  DType a = DType::f32, b = DType::f32, d = DType::f32;
  Operand a_layout = Operand::plain, b_layout = Operand::plain;
  Result result = Result::overwrite;
  Scale a_scale = Scale::none, b_scale = Scale::none;
  Sums sums = Sums::promoted;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;
  auto operator<=>(const BlasProblem&) const = default;
};
std::string to_string(const BlasProblem& problem);

/// Device pointers; scales as the problem says.
struct BlasOperands {
  const void *a = nullptr, *b = nullptr;
  void* d = nullptr;
  const void *a_scale = nullptr, *b_scale = nullptr;
};

/// The plans of one stream: the library's handle, a workspace and, for every problem and alignment of its
/// operands, the descriptors and the algorithm, chosen once for this workspace. Repeating a problem neither
/// allocates nor searches, so it may be captured in a graph. Used by the stream's thread only.
class BlasPlans {
 public:
  explicit BlasPlans(int device);
  ~BlasPlans();
  BlasPlans(const BlasPlans&) = delete;

  /// The workspace, u8, 256-byte aligned. Drops plans made for another size.
  void set_workspace(const Tensor& workspace);
  /// Number of SMs for which products are planned from here on: fewer than the GPU has if collectives run
  /// beside them; 0: all. Plans for another number are kept but not used. Throws DeviceError for more than
  /// the GPU has.
  void set_sm_count(int sms);
  /// Runs the product on the stream. Throws DeviceError if the library is missing or has no algorithm and,
  /// once latched, for a problem without a plan; ShapeError for operands of a type that it does not take.
  void run(Stream& stream, const BlasProblem& problem, const BlasOperands& operands);
  /// The same, but if the library has no algorithm that runs, does nothing and returns false, with a warning
  /// the first time; the other errors are thrown. The answer for a problem never changes.
  bool run_if_supported(Stream& stream, const BlasProblem& problem, const BlasOperands& operands);
  /// How algorithms are chosen from here on: the library's first proposal that runs, or the fastest of its
  /// first eight. The latter runs each on the operands in question, which spoils results that accumulate and
  /// makes the host wait: only for rehearsals.
  enum class Selection : uint8_t { first, fastest };
  void select(Selection selection);
  /// Allows no new plans from here on: a step runs only what was planned before it.
  void latch();
  size_t size() const;

  /// An algorithm as text, for another run or rank with the same library and GPU.
  struct Choice {
    std::string problem;      ///< with strides, alignments and, where not all, SMs
    std::string algorithm;    ///< hexadecimal
    double milliseconds = 0;  ///< 0: not measured here
    int candidates = 0;       ///< measured; 0: proposed by the library or adopted
  };
  /// The choices of all plans.
  std::vector<Choice> choices() const;
  /// Whether adopt() accepts this as Choice::algorithm. Needs no library.
  static constexpr size_t kAlgorithmDigits = 128;
  static bool is_algorithm(std::string_view text) {
    return text.size() == kAlgorithmDigits &&
           text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
  }
  /// Follows these choices, for existing plans and for those made from here on. What the library refuses is
  /// chosen anew. Throws ConfigError for text that is not an algorithm.
  void adopt(const std::vector<Choice>& choices);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// "cuBLASLt 13.1.0". Choices are valid for one version only. Throws DeviceError without the library.
std::string blas_library();

}  // namespace ottava::cuda
