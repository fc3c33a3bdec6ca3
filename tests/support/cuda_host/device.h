#pragma once

// CUDA's device language as ordinary C++: core/cuda/gpu.h includes this instead of its own device half when a
// kernel is compiled for the host execution layer. Only what the kernels of this project use is here.

#ifdef __CUDACC__
#error "the host execution layer is for host compilers"
#endif

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/support/cuda_host/execution.h"

#undef __launch_bounds__
#define __launch_bounds__(...)

// A collective's payloads are read across lanes without an order that the race detector could see.
#if defined(__SANITIZE_THREAD__)
#define OTTAVA_CUDA_HOST_UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define OTTAVA_CUDA_HOST_UNSEEN
#endif

#define threadIdx (::ottava::cuda_host::this_thread->index)
#define blockIdx (::ottava::cuda_host::this_block->index)
#define blockDim (::ottava::cuda_host::this_block->block_dim)
#define gridDim (::ottava::cuda_host::this_block->grid_dim)

namespace ottava::cuda_host {

template <class T>
struct ShufflePayload {
  T value, result;
  int source;
};
template <class T>
OTTAVA_CUDA_HOST_UNSEEN void shuffle_lanes(void** payloads, unsigned lanes, const Site& site) {
  for (int lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    auto& p = *static_cast<ShufflePayload<T>*>(payloads[lane]);
    if (!(lanes >> p.source & 1)) {
      fail_kernel(site, "shuffle: lane %d reads lane %d, which takes no part (lanes %08x)", lane, p.source,
                  lanes);
    }
    __builtin_memcpy(&p.result, &static_cast<ShufflePayload<T>*>(payloads[p.source])->value, sizeof(T));
  }
}
template <class T>
OTTAVA_CUDA_HOST_UNSEEN T shuffle(const char* name, unsigned mask, T value, int source, const Site& site) {
  ShufflePayload<T> payload{value, value, source};
  warp_collective(name, mask, false, &payload, shuffle_lanes<T>, site);
  return payload.result;
}

struct BallotPayload {
  bool predicate;
  unsigned result;
};
OTTAVA_CUDA_HOST_UNSEEN inline void ballot_lanes(void** payloads, unsigned lanes, const Site&) {
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes >> lane & 1) result |= unsigned{static_cast<BallotPayload*>(payloads[lane])->predicate} << lane;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes >> lane & 1) static_cast<BallotPayload*>(payloads[lane])->result = result;
  }
}
OTTAVA_CUDA_HOST_UNSEEN inline unsigned ballot(const char* name, unsigned mask, bool predicate,
                                               const Site& site) {
  BallotPayload payload{predicate, 0};
  warp_collective(name, mask, false, &payload, ballot_lanes, site);
  return payload.result;
}

/// Read-modify-write as a compare-and-swap loop of relaxed builtins: atomic for the race detector, ordering
/// nothing.
template <class T, class F>
T read_modify_write(T* p, F&& f) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  static_assert(sizeof(T) == sizeof(Bits));
  auto* cell = reinterpret_cast<Bits*>(p);
  Bits old_bits = __atomic_load_n(cell, __ATOMIC_RELAXED), new_bits;
  T old_value, new_value;
  do {
    std::memcpy(&old_value, &old_bits, sizeof(T));
    new_value = f(old_value);
    std::memcpy(&new_bits, &new_value, sizeof(T));
  } while (
      !__atomic_compare_exchange_n(cell, &old_bits, new_bits, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old_value;
}

/// One static shared array per block and declaration: `Key` is the type of a lambda written there.
template <class T, class Key>
T& shared_of(Key, const Site& site = Site::current()) {
  static char key;
  return *static_cast<T*>(shared_array(&key, sizeof(T), site));
}

template <class... P>
struct StoredCall {
  void (*kernel)(P...);
  std::tuple<std::decay_t<P>...> arguments;
  static void run(void* self) {
    auto& call = *static_cast<StoredCall*>(self);
    std::apply(call.kernel, call.arguments);
  }
  static void drop(void* self) { delete static_cast<StoredCall*>(self); }
};

template <class T>
bool argument_is_visible(const T& argument) {
  if constexpr (std::is_pointer_v<T>) return is_device_visible(argument);
  return true;
}

}  // namespace ottava::cuda_host

// --- synchronisation and warp collectives; the call site comes from the default argument ---------
using OttavaSite = ottava::cuda_host::Site;

inline void __syncthreads(OttavaSite site = OttavaSite::current()) {
  ottava::cuda_host::block_barrier("__syncthreads", 0, ottava::cuda_host::Vote::any, site);
}
inline int __syncthreads_or(int predicate, OttavaSite site = OttavaSite::current()) {
  return ottava::cuda_host::block_barrier("__syncthreads_or", predicate, ottava::cuda_host::Vote::any, site);
}
inline int __syncthreads_and(int predicate, OttavaSite site = OttavaSite::current()) {
  return ottava::cuda_host::block_barrier("__syncthreads_and", predicate, ottava::cuda_host::Vote::all, site);
}
inline int __syncthreads_count(int predicate, OttavaSite site = OttavaSite::current()) {
  return ottava::cuda_host::block_barrier("__syncthreads_count", predicate, ottava::cuda_host::Vote::count,
                                          site);
}
inline void __syncwarp(unsigned mask, OttavaSite site = OttavaSite::current()) {
  ottava::cuda_host::warp_collective("__syncwarp", mask, true, nullptr, nullptr, site);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, OttavaSite site = OttavaSite::current()) {
  int lane = static_cast<int>(ottava::cuda_host::this_thread->lane);
  int from = (lane & ~(width - 1)) | (source & (width - 1));
  return ottava::cuda_host::shuffle("__shfl_sync", mask, value, from, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  OttavaSite site = OttavaSite::current()) {
  int lane = static_cast<int>(ottava::cuda_host::this_thread->lane), from = lane ^ lane_mask;
  return ottava::cuda_host::shuffle("__shfl_xor_sync", mask, value, from > (lane | (width - 1)) ? lane : from,
                                    site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   OttavaSite site = OttavaSite::current()) {
  int lane = static_cast<int>(ottava::cuda_host::this_thread->lane), step = static_cast<int>(delta);
  int from = (lane & (width - 1)) + step >= width ? lane : lane + step;
  return ottava::cuda_host::shuffle("__shfl_down_sync", mask, value, from, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 OttavaSite site = OttavaSite::current()) {
  int lane = static_cast<int>(ottava::cuda_host::this_thread->lane), step = static_cast<int>(delta);
  int from = (lane & (width - 1)) < step ? lane : lane - step;
  return ottava::cuda_host::shuffle("__shfl_up_sync", mask, value, from, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, OttavaSite site = OttavaSite::current()) {
  return ottava::cuda_host::ballot("__ballot_sync", mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, OttavaSite site = OttavaSite::current()) {
  return ottava::cuda_host::ballot("__any_sync", mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, OttavaSite site = OttavaSite::current()) {
  return ottava::cuda_host::ballot("__all_sync", mask, predicate == 0, site) == 0;
}
inline void __threadfence() { ottava::cuda_host::fence(); }
[[noreturn]] inline void __trap(OttavaSite site = OttavaSite::current()) {
  ottava::cuda_host::fail_kernel(site, "__trap");
}

// --- memory --------------------------------------------------------------------------------------
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  return ottava::cuda_host::read_modify_write(p, [&](T old) { return static_cast<T>(old + v); });
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  return ottava::cuda_host::read_modify_write(p, [&](T old) { return old < v ? v : old; });
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> v) {
  return ottava::cuda_host::read_modify_write(p, [&](T) { return v; });
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return ottava::cuda_host::read_modify_write(p, [&](T old) { return old == expected ? v : old; });
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> v) {
  *p = v;
}

// --- arithmetic ----------------------------------------------------------------------------------
using std::isfinite;
using std::isnan;
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }  // -ffp-contract=off
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long min(long a, long b) { return b < a ? b : a; }
inline long max(long a, long b) { return a < b ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
/// Byte i of the result is the byte of (b, a) that nibble i of `selector` names.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return max(a & 0xffffu, b & 0xffffu) | max(a >> 16, b >> 16) << 16;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }

// --- what core/cuda/gpu.h promises ---------------------------------------------------------------
#define OTTAVA_SHARED(T, name, ...) auto& name = ::ottava::cuda_host::shared_of<T __VA_ARGS__>([] {})

namespace ottava::cuda {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(cuda_host::dynamic_shared());
}

inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              OttavaSite site = OttavaSite::current()) {
  cuda_host::mma_m16n8k16_bf16(d, a, b, site);
}

template <bool kTransposed>
void load_matrix_x4(uint32_t (&out)[4], const void* row, OttavaSite site = OttavaSite::current()) {
  if (reinterpret_cast<uintptr_t>(row) % 16)
    cuda_host::fail_kernel(site, "ldmatrix: a row is not 16-byte aligned");
  cuda_host::check_shared(row, 16, site);
  uint16_t copy[8];
  // The lane's own plain load, so that sanitizers see it.
  for (int i = 0; i < 8; ++i) copy[i] = static_cast<const uint16_t*>(row)[i];
  cuda_host::exchange_matrix(out, 4, kTransposed, copy, site);
}

template <int kBytes>
void start_copy(void* shared, const void* global, const OttavaSite& site) {
  cuda_host::push_copy({shared, global, kBytes, 0}, site);
  // From here to the wait the contents are undefined: a missing wait shows, and so does a stage still being
  // read.
  for (int i = 0; i < kBytes / 4; ++i) static_cast<uint32_t*>(shared)[i] = ~0u;
}
inline void cp_async_16(void* shared, const void* global, bool valid,
                        OttavaSite site = OttavaSite::current()) {
  start_copy<16>(shared, valid ? global : nullptr, site);
}
inline void cp_async_4(void* shared, const void* global, bool valid,
                       OttavaSite site = OttavaSite::current()) {
  start_copy<4>(shared, valid ? global : nullptr, site);
}
inline uint32_t forgotten(uint32_t x) { return x; }
inline void cp_async_commit() { cuda_host::commit_copies(); }
template <int kPending>
void cp_async_wait() {
  for (cuda_host::AsyncCopy copy; cuda_host::next_copy(kPending, copy);) {
    auto* to = static_cast<uint32_t*>(copy.destination);
    auto* from = static_cast<const uint32_t*>(copy.source);
    for (int i = 0; i < copy.bytes / 4; ++i) to[i] = from ? from[i] : 0u;
  }
}

inline float exp2_approx(float x) { return exp2f(x); }
inline uint32_t load_relaxed(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }

template <class... P, class... A>
cudaError_t launch_on(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(P...), A&&... arguments) {
  using Stored = cuda_host::StoredCall<P...>;
  auto* stored = new Stored{kernel, {static_cast<P>(std::forward<A>(arguments))...}};
  bool visible = std::apply([](const auto&... a) { return (cuda_host::argument_is_visible(a) && ...); },
                            stored->arguments);
  if (!visible) {
    delete stored;
    cuda_host::explain("a kernel argument points to memory that the device cannot see");
    return cudaErrorIllegalAddress;
  }
  cuda_host::Call call{reinterpret_cast<const void*>(kernel), &Stored::run, &Stored::drop, stored};
  return static_cast<cudaError_t>(cuda_host::enqueue_grid(
      stream, {shape.grid, shape.block, shape.shared_bytes, kMostStaticShared}, call));
}

}  // namespace ottava::cuda
