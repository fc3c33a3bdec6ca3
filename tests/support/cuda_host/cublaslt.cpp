#include <cublasLt.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/bf16.h"
#include "core/cuda/cublaslt_library.h"
#include "tests/support/cuda_host/execution.h"
#include "tests/support/cuda_host/settings.h"

// cuBLASLt for the host execution layer: the entry points of core/cuda/cublaslt_library.h, which enforce what
// the library requires (types, TN and multiples of 16 for fp8, scale modes, alignment, workspace, an
// algorithm made for exactly this problem) and then multiply on the host, in stream order. Compiled with the
// sanitizers' instrumentation.
namespace ottava::cuda_host {
namespace {

struct Handle {
  int alive = 1;
};
struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale_type;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  int8_t fast_accumulation = 0;
  int32_t a_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
          b_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  const void *a_scale = nullptr, *b_scale = nullptr;
  int32_t sm_count = 0;  // the target; 0: all
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, cols;
  int64_t ld;
  bool operator==(const Layout&) const = default;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};
/// What an algorithm was found for, all of it in cublasLtMatmulAlgo_t: as with the library, another process
/// may use what one has found.
struct Algorithm {
  uint64_t problem;  ///< problem_of()
  uint64_t ordinal;
  uint64_t workspace;
  uint32_t alignment[4];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
std::mutex sm_counts_mutex;  // ranks are threads
std::vector<int> sm_counts;
std::atomic<int> dull_products{0};

bool is_dull(const std::vector<float>& operand) {
  return std::ranges::all_of(operand, [](float x) { return x == 0; }) ||
         !std::ranges::all_of(operand, [](float x) { return std::isfinite(x); });
}

// The library's handles are pointers to types that it keeps to itself.
template <class T, class H>
T& as(H handle) {
  return *reinterpret_cast<T*>(handle);
}
template <class H, class T>
cublasStatus_t give(H* handle, T* object) {
  *handle = reinterpret_cast<H>(object);
  return CUBLAS_STATUS_SUCCESS;
}

size_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1; }
bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

// Algorithms: how long each claims to take. Odd ones add in reverse order: which one runs shows in the bits.
constexpr double kMilliseconds[] = {200, 100, 300};
constexpr int kAlgorithms = 3;

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
/// A number for the problem: types, shapes, strides, transposes, scales, SMs.
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
Algorithm algorithm_in(const cublasLtMatmulAlgo_t& algo) {
  Algorithm algorithm;
  std::memcpy(&algorithm, &algo, sizeof algorithm);
  return algorithm;
}
uint64_t blocks(uint64_t n, uint64_t size) { return (n + size - 1) / size; }
/// Bytes of the scales of [outer, k], whole tiles and padded strides where the library reads them.
uint64_t scale_bytes(int32_t mode, uint64_t outer, uint64_t k) {
  if (mode == kScalar) return 4;
  if (mode == kOuter) return outer * 4;
  if (mode == kVec128) return blocks(k, 128) * outer * 4;
  if (mode == kBlk128) return blocks(outer, 128) * blocks(blocks(k, 128), 4) * 4 * 4;
  return blocks(outer, 128) * blocks(k, 128) * 512;
}
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

/// Why the library would refuse, or null.
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

/// One product, in stream order.
struct Product {
  Description desc;
  Layout a, b, d;
  const void *a_data, *b_data;
  void* d_data;
  float alpha, beta;
  uint64_t algorithm;

  void run() const {
    spend(kMilliseconds[algorithm]);
    const bool ta = desc.transpose_a == CUBLAS_OP_T, tb = desc.transpose_b == CUBLAS_OP_T;
    const uint64_t m = d.rows, n = d.cols, k = ta ? a.rows : a.cols;
    std::vector<float> left(m * k), right(n * k);
    for (uint64_t i = 0; i < m; ++i) {
      for (uint64_t x = 0; x < k; ++x)
        left[i * k + x] = ta ? element(a, a_data, x, i) : element(a, a_data, i, x);
    }
    for (uint64_t j = 0; j < n; ++j) {
      for (uint64_t x = 0; x < k; ++x)
        right[j * k + x] = tb ? element(b, b_data, j, x) : element(b, b_data, x, j);
    }
    if (is_dull(left) || is_dull(right)) ++dull_products;
    const uint64_t step = !is_fp8(a.type) ? k : desc.a_scale_mode == kVec32 ? 32 : 128;  // shares its scales
    for (uint64_t j = 0; j < n; ++j) {
      for (uint64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (uint64_t first = 0; first < k; first += step) {
          float part = 0;
          const uint64_t end = std::min(first + step, k);
          for (uint64_t n = first; n < end; ++n) {
            const uint64_t x = algorithm % 2 ? first + end - 1 - n : n;
            part += left[i * k + x] * right[j * k + x];
          }
          if (is_fp8(a.type)) {
            part *= scale_of(desc.a_scale_mode, desc.a_scale, i, first, m, k) *
                    scale_of(desc.b_scale_mode, desc.b_scale, j, first, n, k);
          }
          sum += part;
        }
        const uint64_t at = i + j * static_cast<uint64_t>(d.ld);
        float value = alpha * sum;
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
};

bool covers(const void* data, const Layout& layout) {
  const uint64_t elements = (layout.cols - 1) * static_cast<uint64_t>(layout.ld) + layout.rows;
  return device_bytes_behind(data) >= elements * size_of(layout.type);
}
bool aligned(const void* data, uint32_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

cublasStatus_t refuse(cublasStatus_t status, const char* reason) {
  explain("%s", reason);
  return status;
}

cublasStatus_t create(cublasLtHandle_t* handle) { return give(handle, new Handle); }
cublasStatus_t destroy(cublasLtHandle_t handle) {
  delete &as<Handle>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* status_string(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : cudaGetErrorString(cudaErrorInvalidValue);
}
cublasStatus_t desc_create(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                           cudaDataType_t scale_type) {
  return give(desc, new Description{.compute = compute, .scale_type = scale_type});
}
cublasStatus_t desc_destroy(cublasLtMatmulDesc_t desc) {
  delete &as<Description>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t desc_set(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t attribute,
                        const void* value, size_t bytes) {
  auto& desc = as<Description>(handle);
  auto set = [&](auto& member) {
    if (bytes != sizeof member) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of the wrong size");
    std::memcpy(&member, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(desc.transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(desc.transpose_b);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return set(desc.sm_count);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return set(desc.fast_accumulation);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return set(desc.a_scale_mode);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return set(desc.b_scale_mode);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(desc.a_scale);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(desc.b_scale);
    default:
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an attribute that the stand-in does not know");
  }
}
cublasStatus_t layout_create(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t cols,
                             int64_t ld) {
  return give(layout, new Layout{type, rows, cols, ld});
}
cublasStatus_t layout_destroy(cublasLtMatrixLayout_t layout) {
  delete &as<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_create(cublasLtMatmulPreference_t* preference) {
  return give(preference, new Preference);
}
cublasStatus_t preference_destroy(cublasLtMatmulPreference_t preference) {
  delete &as<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_set(cublasLtMatmulPreference_t handle,
                              cublasLtMatmulPreferenceAttributes_t attribute, const void* value, size_t) {
  auto& preference = as<Preference>(handle);
  const auto first = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    std::memcpy(&preference.workspace, value, sizeof preference.workspace);
  } else if (attribute >= first && attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES) {
    std::memcpy(&preference.alignment[attribute - first], value, sizeof(uint32_t));
  } else {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a preference that the stand-in does not know");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc_handle, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                         cublasLtMatmulPreference_t preference_handle, int wanted,
                         cublasLtMatmulHeuristicResult_t* results, int* count) {
  const auto& desc = as<Description>(desc_handle);
  const auto& preference = as<Preference>(preference_handle);
  *count = 0;
  if (!(as<Layout>(c) == as<Layout>(d))) return refuse(CUBLAS_STATUS_INVALID_VALUE, "C and D differ");
  if (const char* reason = objection(desc, as<Layout>(a), as<Layout>(b), as<Layout>(d))) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, reason);
  }
  if (is_fp8(as<Layout>(a).type)) {
    for (uint32_t alignment : preference.alignment) {
      if (alignment < 16)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "fp8 needs operands aligned to 16 bytes");
    }
  }
  Algorithm algorithm{
      problem_of(desc, as<Layout>(a), as<Layout>(b), as<Layout>(d)), 0, preference.workspace, {}};
  std::copy(std::begin(preference.alignment), std::end(preference.alignment), algorithm.alignment);
  for (; *count < std::min(wanted, kAlgorithms); ++*count) {
    cublasLtMatmulHeuristicResult_t& result = results[*count] = {};
    algorithm.ordinal = static_cast<uint64_t>(*count);
    std::memcpy(&result.algo, &algorithm, sizeof algorithm);
    result.workspaceSize = preference.workspace;
    result.state =
        settings().unusable_algorithms >> *count & 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t algorithm_check(cublasLtHandle_t, cublasLtMatmulDesc_t desc_handle, cublasLtMatrixLayout_t a,
                               cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                               const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  const Algorithm algorithm = algorithm_in(*algo);
  if (algorithm.problem !=
          problem_of(as<Description>(desc_handle), as<Layout>(a), as<Layout>(b), as<Layout>(d)) ||
      algorithm.ordinal >= static_cast<uint64_t>(kAlgorithms)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  result->workspaceSize = algorithm.workspace;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}
size_t version() { return 130100; }

cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc_handle, const void* alpha,
                      const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                      cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                      cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                      const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                      cudaStream_t stream) {
  const auto& desc = as<Description>(desc_handle);
  const Algorithm plan = algorithm_in(*algo);
  if (!handle) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "no handle");
  {
    const std::lock_guard lock(sm_counts_mutex);
    sm_counts.push_back(desc.sm_count);
  }
  const Layout &la = as<Layout>(a_layout), &lb = as<Layout>(b_layout), &ld = as<Layout>(d_layout);
  if (const char* reason = objection(desc, la, lb, ld)) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, reason);
  if (plan.problem != problem_of(desc, la, lb, ld))
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the algorithm was made for another problem");
  if (settings().failing_algorithms >> plan.ordinal & 1)
    return refuse(CUBLAS_STATUS_EXECUTION_FAILED, "the algorithm does not run");
  if (!aligned(a, plan.alignment[0]) || !aligned(b, plan.alignment[1]) || !aligned(d, plan.alignment[3])) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "an operand is less aligned than the algorithm was promised");
  }
  if (workspace_bytes < plan.workspace ||
      (plan.workspace && (device_bytes_behind(workspace) < plan.workspace || !aligned(workspace, 256)))) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE,
                  "the workspace is too small, not on the device or not aligned to 256 bytes");
  }
  if (c != d || !covers(a, la) || !covers(b, lb) || !covers(d, ld)) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "an operand does not lie inside device memory");
  }
  if (is_fp8(la.type)) {
    auto holds = [](const void* scales, uint64_t bytes) { return device_bytes_behind(scales) >= bytes; };
    if (!holds(desc.a_scale, scale_bytes(desc.a_scale_mode, ld.rows, la.rows)) ||
        !holds(desc.b_scale, scale_bytes(desc.b_scale_mode, ld.cols, la.rows))) {
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "scales do not lie inside device memory");
    }
  }
  auto* product = new Product{
      desc,        la, lb, ld, a, b, d, *static_cast<const float*>(alpha), *static_cast<const float*>(beta),
      plan.ordinal};
  const Call call{nullptr, [](void* p) { static_cast<Product*>(p)->run(); },
                  [](void* p) { delete static_cast<Product*>(p); }, product};
  return enqueue_work(stream, call) == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

int matmuls_on_dull_numbers() { return dull_products.exchange(0); }

std::vector<int> matmul_sm_counts() {
  const std::lock_guard lock(sm_counts_mutex);
  return std::exchange(sm_counts, {});
}

}  // namespace ottava::cuda_host

namespace ottava::cuda {

const CublasLt& cublaslt() {
  using namespace cuda_host;
  static const CublasLt library{
      create,         destroy,       status_string,   desc_create,       desc_destroy,
      desc_set,       layout_create, layout_destroy,  preference_create, preference_destroy,
      preference_set, heuristic,     algorithm_check, version,           matmul};
  return library;
}

}  // namespace ottava::cuda
