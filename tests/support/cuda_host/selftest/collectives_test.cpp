// Each collective and intrinsic against a loop.
#include <array>

#include "core/cuda/elements.cuh"
#include "core/cuda/philox.cuh"
#include "core/cuda/reduce.cuh"
#include "core/philox.h"
#include "tests/support/cuda_host/selftest/fixture.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::cuda;
using namespace ottava::test;

namespace {

constexpr int kShuffles = 5;
__global__ void shuffles(int* out) {
  const int lane = threadIdx.x % 32, x = 100 + static_cast<int>(threadIdx.x);
  int* to = out + threadIdx.x * kShuffles;
  to[0] = __shfl_sync(kAllLanes, x, lane + 3);
  to[1] = __shfl_xor_sync(kAllLanes, x, 5, 8);
  to[2] = __shfl_down_sync(kAllLanes, x, 3, 16);
  to[3] = __shfl_up_sync(kAllLanes, x, 2);
  to[4] = lane < 20 ? __shfl_xor_sync(0xfffffu, x, 1) : 0;
}
__global__ void votes(int* out) {
  const int lane = threadIdx.x % 32;
  int* to = out + threadIdx.x * 6;
  to[0] = static_cast<int>(__ballot_sync(kAllLanes, lane % 3 == 0));
  to[1] = __any_sync(kAllLanes, lane == 31);
  to[2] = __all_sync(kAllLanes, lane < 31);
  to[3] = __syncthreads_count(threadIdx.x % 2);
  to[4] = __syncthreads_or(threadIdx.x == 63);
  to[5] = __syncthreads_and(threadIdx.x != 63);
}
__global__ void early_exit(int* out) {
  if (threadIdx.x % 32 >= 24) return;  // exited threads are excused from barriers and collectives
  OTTAVA_SHARED(int, total, [1]);
  if (threadIdx.x == 0) *total = 0;
  __syncthreads();
  atomicAdd(total, __shfl_sync(kAllLanes, 1, 0));
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = *total;
}
__global__ void reductions(float* sums, uint32_t* amax) {
  const float x = static_cast<float>(threadIdx.x);
  const float sum = team_sum<128>(x), warp = team_sum<32>(x), largest = warp_max(x);
  if (blockIdx.x == 0 && threadIdx.x == 127) {
    sums[0] = sum;
    sums[1] = warp;
    sums[2] = largest;
  }
  raise_amax(amax, abs_bits(-x));
}
__global__ void product(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d) {
  OTTAVA_SHARED(__nv_bfloat16, left, [16 * 24]);
  OTTAVA_SHARED(__nv_bfloat16, right, [16 * 24]);  // as it lies in memory: [k, n]
  const int lane = threadIdx.x;
  for (int i = lane; i < 16 * 16; i += 32) {
    left[i / 16 * 24 + i % 16] = a[i];
    right[i / 16 * 24 + i % 16] = b[i];
  }
  __syncwarp(kAllLanes);
  uint32_t x[4], y[4];
  load_matrix_x4<false>(x, left + lane % 16 * 24 + lane / 16 * 8);
  load_matrix_x4<true>(y, right + lane % 16 * 24 + lane / 16 * 8);
  for (int half = 0; half < 2; ++half) {
    float sums[4] = {1, 1, 1, 1};
    mma_m16n8k16_bf16(sums, x, {y[2 * half], y[2 * half + 1]});
    for (int e = 0; e < 4; ++e) {
      const int row = lane / 4 + e / 2 * 8, column = half * 8 + lane % 4 * 2 + e % 2;
      d[row * 16 + column] = sums[e];
    }
  }
}
__global__ void staged_copy(const float* in, float* out, int tiles) {
  OTTAVA_SHARED(float, stages, [2][128]);
  auto load = [&](int tile) {
    cp_async_16(&stages[tile % 2][threadIdx.x * 4], in + tile * 128 + threadIdx.x * 4, threadIdx.x != 31);
    cp_async_commit();
  };
  load(0);
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles)
      load(tile + 1);
    else
      cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    for (int i = threadIdx.x; i < 128; i += 32) out[tile * 128 + i] = stages[tile % 2][127 - i];
    __syncthreads();
  }
}
__global__ void last_block(uint32_t* counter, float* partial, float* out) {
  OTTAVA_SHARED(bool, last, [1]);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = static_cast<float>(blockIdx.x);
    __threadfence();
    *last = atomicAdd(counter, 1u) == gridDim.x - 1;
    if (*last) __threadfence();
  }
  __syncthreads();
  if (!*last || threadIdx.x != 0) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
  *out = sum;
}
__global__ void random_words(uint32_t* out, uint64_t index) {
  const PhiloxWords p = philox(7, 0x123456789abcdefu, index);
  for (int i = 0; i < 4; ++i) out[i] = p.words[i];
}
__global__ void indices(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = static_cast<int>(block * 1000 + thread);
}

}  // namespace

TEST_CASE("shuffles take the lane that CUDA's definition names") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer out(stream, DType::i32, {64 * kShuffles});
  for_each_order([&] {
    launch("shuffles", stream, {.grid = 1, .block = 64}, shuffles, device_pointer<int>(out));
    auto got = out.download_as<int32_t>();
    for (int i = 0; i < 64; ++i) {
      const int lane = i % 32, warp = 100 + i / 32 * 32;
      const int down = lane % 16 + 3 < 16 ? lane + 3 : lane;
      const std::array<int, kShuffles> want = {warp + (lane + 3) % 32, warp + (lane ^ 5), warp + down,
                                               warp + (lane < 2 ? lane : lane - 2),
                                               lane < 20 ? warp + (lane ^ 1) : 0};
      for (int k = 0; k < kShuffles; ++k) CHECK(got[size_t(i * kShuffles + k)] == want[size_t(k)]);
    }
  });
}

TEST_CASE("votes of a warp and of a block") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer out(stream, DType::i32, {64 * 6});
  for_each_order([&] {
    launch("votes", stream, {.grid = 1, .block = 64}, votes, device_pointer<int>(out));
    auto got = out.download_as<int32_t>();
    const std::array<int, 6> want = {0x49249249, 1, 0, 32, 1, 0};
    for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == want[i % 6]);
  });
}

TEST_CASE("threads that have exited are excused") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer out(stream, DType::i32, {3});
  for_each_order([&] {
    launch("early_exit", stream, {.grid = 3, .block = 64}, early_exit, device_pointer<int>(out));
    CHECK(out.download_as<int32_t>() == std::vector<int32_t>(3, 48));
  });
}

TEST_CASE("sums and maxima of core/cuda/reduce.cuh") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer sums(stream, DType::f32, {3}), amax(stream, DType::u32, {1});
  for_each_order([&] {
    amax.upload_as<uint32_t>(std::array{0u});
    launch("reductions", stream, {.grid = 2, .block = 128}, reductions, device_pointer<float>(sums),
           device_pointer<uint32_t>(amax));
    CHECK(sums.floats() == std::vector<float>{127 * 64, (96 + 127) * 16, 127});
    CHECK(amax.download_as<uint32_t>()[0] == std::bit_cast<uint32_t>(127.0f));
  });
}

TEST_CASE("mma.sync multiplies what ldmatrix loads") {
  Stream stream = Stream::cuda(0);
  auto a = normal_values(256, 1, DType::bf16), b = normal_values(256, 2, DType::bf16);
  DeviceBuffer a_device(stream, DType::bf16, {16, 16}, a), b_device(stream, DType::bf16, {16, 16}, b),
      d(stream, DType::f32, {16, 16});
  for_each_order([&] {
    launch("product", stream, {.grid = 1, .block = 32}, product,
           static_cast<const __nv_bfloat16*>(a_device.tensor().data),
           static_cast<const __nv_bfloat16*>(b_device.tensor().data), device_pointer<float>(d));
    auto got = d.floats();
    for (size_t i = 0; i < 16; ++i) {
      for (size_t j = 0; j < 16; ++j) {
        double want = 1;
        for (size_t k = 0; k < 16; ++k) want += double(a[i * 16 + k]) * b[k * 16 + j];
        CHECK(got[i * 16 + j] == Approx(want).margin(1e-4));
      }
    }
  });
}

TEST_CASE("a pipeline of asynchronous copies, with zeros where they are not valid") {
  Stream stream = Stream::cuda(0);
  auto values = normal_values(5 * 128, 1);
  DeviceBuffer in(stream, DType::f32, {5 * 128}, values), out(stream, DType::f32, {5 * 128});
  for_each_order([&] {
    launch("staged_copy", stream, {.grid = 1, .block = 32}, staged_copy,
           static_cast<const float*>(device_pointer<float>(in)), device_pointer<float>(out), 5);
    auto got = out.floats();
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t from = 127 - i % 128;
      CHECK(got[i] == (from >= 124 ? 0.0f : values[i / 128 * 128 + from]));
    }
  });
}

TEST_CASE("the last block finds what the others wrote") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer counter(stream, DType::u32, {1}), partial(stream, DType::f32, {20}),
      out(stream, DType::f32, {1});
  for_each_order([&] {
    counter.upload_as<uint32_t>(std::array{0u});
    launch("last_block", stream, {.grid = 20, .block = 32}, last_block, device_pointer<uint32_t>(counter),
           device_pointer<float>(partial), device_pointer<float>(out));
    CHECK(out.floats()[0] == 190.0f);
  });
}

TEST_CASE("the device's Philox gives the host's words") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer out(stream, DType::u32, {4});
  for (uint64_t index : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 40) + 3}) {
    launch("random_words", stream, {.grid = 1, .block = 1}, random_words, device_pointer<uint32_t>(out),
           index);
    auto want = PhiloxStream{7, 0x123456789abcdefu}.bits(index);
    CHECK(out.download_as<uint32_t>() == std::vector<uint32_t>(want.begin(), want.end()));
  }
}

TEST_CASE("three-dimensional grids and blocks") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer out(stream, DType::i32, {24 * 30});
  for_each_order([&] {
    launch("indices", stream, {.grid = dim3(2, 3, 4), .block = dim3(5, 3, 2)}, indices,
           device_pointer<int>(out));
    auto got = out.download_as<int32_t>();
    for (int i = 0; i < 24 * 30; ++i) CHECK(got[size_t(i)] == i / 30 * 1000 + i % 30);
  });
}
