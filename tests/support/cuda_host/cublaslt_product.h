#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

// A product as cuBLASLt sees it: what the library requires of it, and the product on the host.
namespace ottava::cuda_host {

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
inline size_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1; }
inline bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

/// Algorithms that a product has. Those of odd number add in reverse order, so the bits show which one ran.
inline constexpr int kAlgorithms = 3;

/// Why the library would refuse the product, or null.
const char* objection(const Description& desc, const Layout& a, const Layout& b, const Layout& d);
/// A number for the problem: types, shapes, strides, transposes, scales, SMs.
uint64_t problem_of(const Description& desc, const Layout& a, const Layout& b, const Layout& d);
/// Bytes of the scales of a matrix [outer, k], with whole tiles and padded strides where the library reads
/// those.
uint64_t scale_bytes(int32_t mode, uint64_t outer, uint64_t k);

/// Enqueues one product, in stream order.
struct Product {
  Description desc;
  Layout a, b, d;
  const void *a_data, *b_data;
  void* d_data;
  float alpha, beta;
  uint64_t algorithm;

  void run() const;
};

}  // namespace ottava::cuda_host
