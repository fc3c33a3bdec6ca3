#include "tests/support/cuda_host/cublaslt_product.h"

#include <cuda_fp8.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <vector>

#include "core/bf16.h"
#include "tests/support/cuda_host/execution.h"
#include "tests/support/cuda_host/settings.h"

namespace ottava::cuda_host {
namespace {

std::atomic<int> dull_products{0};

/// All zeros, or something that is not finite. By pointer: a vector whose address escapes would be seen by
/// the race detector on a stack that this work only borrows.
bool is_dull(const float* operand, size_t count) {
  bool zero = true;
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(operand[i])) return true;
    zero = zero && operand[i] == 0;
  }
  return zero;
}

// How long each algorithm claims to take.
constexpr double kMilliseconds[kAlgorithms] = {200, 100, 300};

constexpr int32_t kScalar = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                  kOuter = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
                  kVec128 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                  kBlk128 = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                  kVec32 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;

/// Why the library would refuse these scales, or null. Which GPU has which modes: the table of "Scaling Mode
/// Support".
const char* objection_to_scales(const Description& desc) {
  const int32_t a = desc.a_scale_mode, b = desc.b_scale_mode;
  const int capability = settings().capability;
  const bool in_blocks = (a == kVec128 || a == kBlk128) && (b == kVec128 || b == kBlk128);
  if (a != b && !in_blocks) return "scale modes differ";
  if (a == kBlk128 && b == kBlk128) return "128x128 scales of both operands";
  if (a == kScalar) {
    if (capability < 89) return "this GPU has no fp8";
  } else if (a == kOuter || in_blocks) {
    if (capability != 90) return "a scale mode of sm_90 alone";
    if (in_blocks && desc.fast_accumulation) return "block scales have no fast accumulation";
  } else if (a == kVec32) {
    if (capability < 100) return "a scale mode of sm_100 and later";
  } else {
    return "unknown scale mode";
  }
  if (!desc.a_scale || !desc.b_scale) return "fp8 without scales";
  for (const void* scale : {desc.a_scale, desc.b_scale}) {
    if (reinterpret_cast<uintptr_t>(scale) % 16) return "scales are not aligned to 16 bytes";
  }
  return nullptr;
}

constexpr uint64_t kInstruction = 32;  // products that the tensor cores of fp8 add at once

/// sums[i] += the products left[x][i] * right[x] of one instruction, as the fp8 tensor cores of sm_89 and
/// sm_90 add them (arXiv:2412.19437, arXiv:2411.10958): the products and the sum so far are cut 13 bits below
/// the leading bit of the largest of them.
class TensorCoreSums {
 public:
  explicit TensorCoreSums(uint64_t count) : largest_(count), unit_(count), units_(count) {}

  void add(std::vector<float>& sums, const float* left, const float* right, uint64_t terms) {
    const uint64_t m = sums.size();
    for (uint64_t i = 0; i < m; ++i) largest_[i] = std::abs(sums[i]);
    for (uint64_t x = 0; x < terms; ++x) {
      for (uint64_t i = 0; i < m; ++i)
        largest_[i] = std::max(largest_[i], std::abs(left[x * m + i] * right[x]));
    }
    for (uint64_t i = 0; i < m; ++i) {
      unit_[i] = unit_below(largest_[i]);
      units_[i] = std::trunc(sums[i] / unit_[i]);
    }
    for (uint64_t x = 0; x < terms; ++x) {
      for (uint64_t i = 0; i < m; ++i) units_[i] += std::trunc(left[x * m + i] * right[x] / unit_[i]);
    }
    for (uint64_t i = 0; i < m; ++i) sums[i] = units_[i] * unit_[i];
  }

 private:
  static float unit_below(float largest) {
    const uint32_t exponent = std::bit_cast<uint32_t>(largest) >> 23 & 0xff;
    return std::bit_cast<float>((exponent > 13 ? exponent - 13 : 1) << 23);
  }
  std::vector<float> largest_, unit_, units_;
};

uint64_t blocks(uint64_t n, uint64_t size) { return (n + size - 1) / size; }
/// The scale of element (outer, k), by the library's documentation of its layouts.
float scale_of(int32_t mode, const void* scales, uint64_t outer, uint64_t k, uint64_t outers, uint64_t ks) {
  const auto* f32 = static_cast<const float*>(scales);
  if (mode == kScalar) return f32[0];
  if (mode == kOuter) return f32[outer];
  if (mode == kVec128) return f32[k / 128 * outers + outer];
  if (mode == kBlk128) return f32[outer / 128 * (blocks(blocks(ks, 128), 4) * 4) + k / 128];
  const uint64_t tile = outer / 128 * blocks(ks, 128) + k / 128;
  const uint8_t code =
      static_cast<const uint8_t*>(scales)[tile * 512 + outer % 32 * 16 + outer / 32 % 4 * 4 + k / 32 % 4];
  return std::ldexp(1.0f, code - 127);
}

float element(const Layout& layout, const void* data, uint64_t row, uint64_t col) {
  const uint64_t i = row + col * static_cast<uint64_t>(layout.ld);
  switch (layout.type) {
    case CUDA_R_32F:
      return static_cast<const float*>(data)[i];
    case CUDA_R_16BF:
      return static_cast<float>(bf16::from_bits(static_cast<const uint16_t*>(data)[i]));
    default: {
      const auto kind = layout.type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2;
      const __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<const uint8_t*>(data)[i], kind);
      return __half2float(__half(half));
    }
  }
}

}  // namespace

uint64_t problem_of(const Description& desc, const Layout& a, const Layout& b, const Layout& d) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a, a word at a time
  auto add = [&](auto value) { hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211u; };
  for (const Layout* x : {&a, &b, &d}) {
    add(x->type);
    add(x->rows);
    add(x->cols);
    add(x->ld);
  }
  add(desc.transpose_a);
  add(desc.transpose_b);
  add(desc.a_scale_mode);
  add(desc.b_scale_mode);
  add(desc.sm_count);
  return hash;
}

uint64_t scale_bytes(int32_t mode, uint64_t outer, uint64_t k) {
  if (mode == kScalar) return 4;
  if (mode == kOuter) return outer * 4;
  if (mode == kVec128) return blocks(k, 128) * outer * 4;
  if (mode == kBlk128) return blocks(outer, 128) * blocks(blocks(k, 128), 4) * 4 * 4;
  return blocks(outer, 128) * blocks(k, 128) * 512;
}

const char* objection(const Description& desc, const Layout& a, const Layout& b, const Layout& d) {
  const bool ta = desc.transpose_a == CUBLAS_OP_T, tb = desc.transpose_b == CUBLAS_OP_T;
  const uint64_t m = ta ? a.cols : a.rows, k = ta ? a.rows : a.cols, n = tb ? b.rows : b.cols;
  if (desc.sm_count < 0 || desc.sm_count > kSmCount) return "a target of more SMs than the GPU has";
  if (desc.compute != CUBLAS_COMPUTE_32F || desc.scale_type != CUDA_R_32F)
    return "sums and factors must be f32";
  if ((tb ? b.cols : b.rows) != k || d.rows != m || d.cols != n) return "shapes do not fit";
  for (const Layout* x : {&a, &b, &d}) {
    if (x->ld < static_cast<int64_t>(x->rows)) return "a leading dimension is below the number of rows";
  }
  if (d.type != CUDA_R_32F && d.type != CUDA_R_16BF) return "D must be f32 or bf16";
  if (is_fp8(a.type) != is_fp8(b.type)) return "both operands must be fp8, or none";
  if (!is_fp8(a.type)) {
    if (a.type != b.type || (a.type == CUDA_R_32F && d.type != CUDA_R_32F))
      return "no such combination of types";
    return nullptr;
  }
  if (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) return "e5m2 x e5m2 does not exist";
  if (!ta || tb) return "fp8 needs A transposed and B not (TN)";
  if (m % 16 || n % 16 || k % 16 || a.ld % 16 || b.ld % 16) return "fp8 needs multiples of 16";
  return objection_to_scales(desc);
}

void Product::run() const {
  spend(kMilliseconds[algorithm]);
  const bool ta = desc.transpose_a == CUBLAS_OP_T, tb = desc.transpose_b == CUBLAS_OP_T;
  const uint64_t m = d.rows, n = d.cols, k = ta ? a.rows : a.cols;
  std::vector<float> left(k * m), right(n * k), sums(m), parts(m);
  for (uint64_t x = 0; x < k; ++x) {
    for (uint64_t i = 0; i < m; ++i)
      left[x * m + i] = ta ? element(a, a_data, x, i) : element(a, a_data, i, x);
  }
  for (uint64_t j = 0; j < n; ++j) {
    for (uint64_t x = 0; x < k; ++x)
      right[j * k + x] = tb ? element(b, b_data, j, x) : element(b, b_data, x, j);
  }
  if (is_dull(left.data(), k * m) || is_dull(right.data(), n * k)) ++dull_products;
  const bool cuts = is_fp8(a.type) && settings().capability < 100;
  // How many terms are added before they go to the sums in f32: those that share their scales, or those that
  // are promoted together.
  const uint64_t step = !is_fp8(a.type) || desc.fast_accumulation ? k
                        : desc.a_scale_mode == kVec32             ? 32
                                                                  : 128;
  TensorCoreSums tensor_core(m);
  for (uint64_t j = 0; j < n; ++j) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (uint64_t first = 0; first < k; first += step) {
      std::fill(parts.begin(), parts.end(), 0.0f);
      const uint64_t end = std::min(first + step, k);
      for (uint64_t at = first; cuts && at < end; at += kInstruction) {
        // k is a multiple of 16, so the last instruction may have only 16 terms.
        const uint64_t terms = std::min(end - at, kInstruction),
                       x = algorithm % 2 ? first + end - at - terms : at;
        tensor_core.add(parts, &left[x * m], &right[j * k + x], terms);
      }
      for (uint64_t at = first; !cuts && at < end; ++at) {
        const uint64_t x = algorithm % 2 ? first + end - 1 - at : at;
        for (uint64_t i = 0; i < m; ++i) parts[i] += left[x * m + i] * right[j * k + x];
      }
      for (uint64_t i = 0; i < m; ++i) {
        if (is_fp8(a.type)) {
          parts[i] *= scale_of(desc.a_scale_mode, desc.a_scale, i, first, m, k) *
                      scale_of(desc.b_scale_mode, desc.b_scale, j, first, n, k);
        }
        sums[i] += parts[i];
      }
    }
    for (uint64_t i = 0; i < m; ++i) {
      const uint64_t at = i + j * static_cast<uint64_t>(d.ld);
      float value = alpha * sums[i];
      if (d.type == CUDA_R_32F) {
        float* to = static_cast<float*>(d_data) + at;
        *to = beta == 0 ? value : value + beta * *to;
      } else {
        uint16_t* to = static_cast<uint16_t*>(d_data) + at;
        if (beta != 0) value += beta * static_cast<float>(bf16::from_bits(*to));
        *to = bf16(value).bits;
      }
    }
  }
}

int matmuls_on_dull_numbers() { return dull_products.exchange(0); }

}  // namespace ottava::cuda_host
