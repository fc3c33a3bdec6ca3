#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cuda/cublaslt_library.h"
#include "tests/support/cuda_host/cublaslt_product.h"
#include "tests/support/cuda_host/execution.h"
#include "tests/support/cuda_host/settings.h"

// cuBLASLt for the host execution layer: the entry points of core/cuda/cublaslt_library.h, which enforce what
// the library requires (types, TN and multiples of 16 for fp8, scale modes, alignment, workspace, an
// algorithm made for exactly this problem) and then multiply on the host (cublaslt_product.h), in stream
// order. Compiled with the sanitizers' instrumentation.
namespace ottava::cuda_host {
namespace {

struct Handle {
  int alive = 1;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
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

Algorithm algorithm_in(const cublasLtMatmulAlgo_t& algo) {
  Algorithm algorithm;
  std::memcpy(&algorithm, &algo, sizeof algorithm);
  return algorithm;
}
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

// A test may choose it: OTTAVA_CUDA_HOST_CUBLASLT=no_fine_accumulation.
bool lacks_fine_accumulation() {
  const char* value = std::getenv("OTTAVA_CUDA_HOST_CUBLASLT");
  return value && std::string_view(value) == "no_fine_accumulation";
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
  } else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    std::memcpy(&preference.reductions, value, sizeof preference.reductions);
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
  // The library would be free to add partial sums in D's type.
  const bool adds_in_d =
      preference.reductions & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
  if (adds_in_d && as<Layout>(d).type != CUDA_R_32F)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "partial sums may be rounded to the type of D");
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
  if (*static_cast<const float*>(beta) != 0 && is_fp8(la.type) &&
      desc.a_scale_mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F && lacks_fine_accumulation()) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "scales of rows and blocks do not go with beta 1");
  }
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
