#pragma once

// The one header that kernels include. A `.cu` file is compiled twice: by nvcc for the GPU, and by the host
// compiler for the execution layer in tests/support/cuda_host, which runs it without one. What keeps that
// possible:
//   - launch() instead of <<<>>>, OTTAVA_SHARED and dynamic_shared() instead of __shared__;
//   - inline PTX only here, each wrapper with its host version (cuda_host/device.h) added in the same commit;
//   - explicit masks in every warp collective, no spinning on another block, no __CUDA_ARCH__ in kernels;
//   - arithmetic in float and double; bf16 and fp8 are storage.

#include <cuda_runtime.h>

#include <cstdint>

#include "core/error.h"
#include "core/stream.h"

namespace ottava::cuda {

/// Grid, block and dynamic shared memory of a launch.
struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  ///< dynamic
};

/// Bytes of static shared arrays that a kernel with dynamic shared memory may have: launch() leaves room for
/// them where it does not ask for more than every kernel has.
inline constexpr size_t kMostStaticShared = 8 * 1024;

inline constexpr unsigned kAllLanes = 0xffffffffu;

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/// The data of a Tensor or MatrixRows, as kernels take it. That T is the element type must have been checked.
template <class T>
T* pointer(const auto& x) {
  return static_cast<T*>(x.data);
}
/// A grid's extent in x. Throws ShapeError if it does not fit.
inline unsigned grid_of(int64_t blocks) {
  if (blocks > 2147483647)
    fail<ShapeError>("cuda", "{} blocks in one launch, at most 2^31 - 1 are possible", blocks);
  return static_cast<unsigned>(blocks);
}
/// One thread for each of `count` items.
inline LaunchShape one_thread_each(int64_t count, unsigned block) {
  return {.grid = grid_of(ceil_div(count, block)), .block = block};
}
/// A grid's extent in y or z. Throws ShapeError if it does not fit.
inline constexpr int64_t kMostInYZ = 65535;
inline unsigned grid_of_yz(int64_t blocks) {
  if (blocks > kMostInYZ)
    fail<ShapeError>("cuda", "{} blocks along y or z of one launch, at most {} are possible", blocks,
                     kMostInYZ);
  return static_cast<unsigned>(blocks);
}
/// Calls body(first, extent) for consecutive ranges of `count` items, each of which fits along y or z.
template <class Body>
void for_each_grid(int64_t count, Body&& body) {
  for (int64_t first = 0; first < count; first += kMostInYZ)
    body(first, grid_of_yz(count - first < kMostInYZ ? count - first : kMostInYZ));
}

}  // namespace ottava::cuda

#if defined(OTTAVA_CUDA_HOST)
#include "tests/support/cuda_host/device.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp8.h>

/// A static shared array: `OTTAVA_SHARED(float, partial, [32]);` declares `float partial[32]`.
#define OTTAVA_SHARED(T, name, ...) __shared__ T name __VA_ARGS__

namespace ottava::cuda {

/// The block's dynamic shared memory, 1024-byte aligned.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char ottava_dynamic_shared[];
  return reinterpret_cast<T*>(ottava_dynamic_shared);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// d += a b: a 16x16 row-major, b 16x8 column-major, fragments as the PTX ISA lays them out. sm_80.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Loads four 8x8 matrices of 16-bit elements from shared memory; lane l gives the address of row l % 8 of
/// matrix l / 8.
template <bool kTransposed>
__device__ __forceinline__ void load_matrix_x4(uint32_t (&out)[4], const void* row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
}

/// Starts copying 16 bytes to shared memory, bypassing the L1 cache; zeros if not valid (`global` is then not
/// read).
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
/// The same for 4 bytes, through the L1 cache.
__device__ __forceinline__ void cp_async_4(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 4 : 0)
               : "memory");
}
/// Closes this thread's group of copies.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most kPending of this thread's groups are under way. Other threads see the data only after
/// a barrier.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

/// The same value, of which the compiler knows nothing: what was computed from it before is computed again
/// rather than kept in registers until then.
__device__ __forceinline__ uint32_t forgotten(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// 2^x to 2 ulp; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// A read that may run concurrently with other threads' atomic updates.
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* p) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];\n" : "=r"(value) : "l"(p) : "memory");
  return value;
}

template <class... P, class... A>
cudaError_t launch_on(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(P...), A&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(arguments))...);
}

}  // namespace ottava::cuda

#endif

namespace ottava::cuda {

/// Throws DeviceError that names `op` unless the call succeeded.
inline void check(cudaError_t status, std::string_view op) {
  if (status != cudaSuccess) fail<DeviceError>("cuda", "{} failed: {}", op, cudaGetErrorString(status));
}

/// The thread's item under one_thread_each(count, block). If blocks have more items than threads, the
/// thread's first item.
__device__ __forceinline__ int64_t thread_of_grid(int64_t block) { return blockIdx.x * block + threadIdx.x; }

/// Enqueues kernel(arguments...). A grid with a zero extent has nothing to do and is not launched. Throws
/// DeviceError.
template <class... P, class... A>
void launch(std::string_view op, Stream& stream, const LaunchShape& shape, void (*kernel)(P...),
            A&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  constexpr size_t kAllowedByDefault = 48 * 1024;  // both kinds together
  if (shape.shared_bytes > kAllowedByDefault - kMostStaticShared) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          op);
  }
  auto* native = static_cast<cudaStream_t>(stream.native());
  check(launch_on(native, shape, kernel, std::forward<A>(arguments)...), op);
}

}  // namespace ottava::cuda
