// What a kernel must not do, and the sentence with which the layer says so.
#include <thread>

#include "core/buffer.h"
#include "tests/support/cuda_host/selftest/fixture.h"

using namespace ottava;
using namespace ottava::cuda;
using namespace ottava::test;

namespace {

__global__ void divergent_barrier(int* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[0] = 1;
}
__global__ void deadlock(int* out) {
  if (threadIdx.x == 0) __syncwarp(3u);
  __syncthreads();
  out[0] = 1;
}
__global__ void foreign_mask(int* out) { out[threadIdx.x] = __shfl_xor_sync(0xaaaaaaaau, 1, 2); }
__global__ void overlapping_masks(int* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_sync(0x0001ffffu, 1, 0);
  } else {
    out[threadIdx.x] = __shfl_sync(0xffff0000u, 1, 16);
  }
  __syncthreads();
}
__global__ void divergent_shuffle(int* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1, 1);
  } else {
    out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 2, 1);
  }
}
__global__ void absent_source(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1, 16);
}
__global__ void misaligned_matrix(int* out) {
  OTTAVA_SHARED(__nv_bfloat16, tile, [8 * 64]);
  uint32_t r[4];
  load_matrix_x4<false>(r, tile + 1);
  out[0] = static_cast<int>(r[0]);
}
__global__ void foreign_matrix(int* out) {
  uint32_t r[4];
  load_matrix_x4<false>(r, out);
  out[0] = static_cast<int>(r[0]);
}
__global__ void half_warp_mma(float* out) {
  float d[4] = {};
  if (threadIdx.x < 16) mma_m16n8k16_bf16(d, {0, 0, 0, 0}, {0, 0});
  out[threadIdx.x] = d[0];
}
__global__ void misaligned_copy(const float* in) {
  OTTAVA_SHARED(float, tile, [64]);
  cp_async_16(tile + 1, in, true);
  cp_async_commit();
  cp_async_wait<0>();
}
__global__ void copy_outside_shared(float* out) {
  cp_async_16(out, out, true);
  cp_async_commit();
  cp_async_wait<0>();
}
__global__ void copy_left_pending(const float* in) {
  OTTAVA_SHARED(float, tile, [64]);
  cp_async_16(tile, in, true);
  cp_async_commit();
}
template <int kInts>
__global__ void static_beside_dynamic(int* out) {
  OTTAVA_SHARED(int, tile, [kInts]);
  tile[threadIdx.x] = 7;
  out[threadIdx.x] = tile[threadIdx.x];
}
__global__ void static_beside_all(int* out) {
  OTTAVA_SHARED(int, tile, [512]);
  tile[threadIdx.x] = 7;
  out[threadIdx.x] = tile[threadIdx.x];
}
__global__ void trap() { __trap(); }
__global__ void nothing(int* out) { out[threadIdx.x] = 7; }
__global__ void uninitialised(float* out) {
  OTTAVA_SHARED(float, tile, [32]);
  if (threadIdx.x != 3) tile[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}
__global__ void copy_without_wait(const float* in, float* out) {
  OTTAVA_SHARED(float, tile, [4]);
  if (threadIdx.x == 0) {
    cp_async_16(tile, in, true);
    cp_async_commit();
    out[0] = tile[0];
    cp_async_wait<0>();
    out[1] = tile[0];
  }
}

struct Report {
  const char* text;
  std::function<void(Stream&, int*)> launch_it;
};

}  // namespace

TEST_CASE("every misuse of the device language is reported, and the next launch works") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer out(stream, DType::i32, {128});
  auto one = [](auto kernel, unsigned threads) {
    return [=](Stream& s, int* p) { launch("bad", s, {.grid = 2, .block = threads}, kernel, p); };
  };
  auto with_shared = [](auto kernel, size_t bytes) {
    return [=](Stream& s, int* p) {
      launch("bad", s, {.grid = 1, .block = 128, .shared_bytes = bytes}, kernel, p);
    };
  };
  auto with_floats = [](auto kernel) {
    return [=](Stream& s, int* p) {
      launch("bad", s, {.grid = 1, .block = 32}, kernel, reinterpret_cast<float*>(p));
    };
  };
  const Report reports[] = {
      {"divergent __syncthreads: ", one(divergent_barrier, 64)},
      {"deadlock: ", one(deadlock, 64)},
      {"is not in its own mask aaaaaaaa", one(foreign_mask, 32)},
      {" wait ", one(overlapping_masks, 32)},  // found at the second mask, or as a deadlock
      {"diverged: lanes ", one(divergent_shuffle, 32)},
      {"which takes no part (lanes 0000ffff)", one(absent_source, 32)},
      {"ldmatrix: a row is not 16-byte aligned", one(misaligned_matrix, 32)},
      {"is not in this block's shared memory", one(foreign_matrix, 32)},
      {"mma.sync needs all 32 lanes", with_floats(half_warp_mma)},
      {"cp.async: an address is not aligned to 16 bytes", with_floats(misaligned_copy)},
      {"is not in this block's shared memory", with_floats(copy_outside_shared)},
      {"exits with cp.async copies pending", with_floats(copy_left_pending)},
      {"8192 bytes of static shared memory and 40961 of dynamic: 49152 together are allowed",
       [](Stream& s, int* p) {  // launch() would ask
         check(launch_on(static_cast<cudaStream_t>(s.native()),
                         {.grid = 1, .block = 128, .shared_bytes = 40961}, static_beside_dynamic<2048>, p),
               "bad");
       }},
      {"8196 bytes of static shared memory beside dynamic: launch() leaves room for 8192",
       with_shared(static_beside_dynamic<2049>, 1)},
      {"2048 bytes of static shared memory and 230401 of dynamic: 232448 together are allowed",
       with_shared(static_beside_all, 230401)},
      {"__trap", [](Stream& s, int*) { launch("bad", s, {.grid = 1, .block = 1}, trap); }},
  };
  for_each_order([&] {
    for (const Report& report : reports) {
      std::string message = failure_of(stream, [&] { report.launch_it(stream, device_pointer<int>(out)); });
      INFO("expected '" << report.text << "' in '" << message << "'");
      CHECK(contains(message, report.text));
      CHECK(contains(message, "reports_test.cpp:"));
      launch("good", stream, {.grid = 1, .block = 128}, nothing, device_pointer<int>(out));
      CHECK(out.download_as<int32_t>() == std::vector<int32_t>(128, 7));
    }
  });
}

TEST_CASE("a deadlock names where threads wait") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer out(stream, DType::i32, {1});
  std::string message = failure_of(
      stream, [&] { launch("bad", stream, {.grid = 1, .block = 64}, deadlock, device_pointer<int>(out)); });
  CHECK(contains(message, "thread 0 waits in __syncwarp at "));
  CHECK(contains(message, "thread 1 waits in __syncthreads at "));
}

TEST_CASE("launches that the hardware would refuse are refused") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer out(stream, DType::i32, {1024});
  int* p = device_pointer<int>(out);
  auto says = [&](const LaunchShape& shape, const std::string& text, int* argument) {
    std::string message = failure_of(stream, [&] { launch("nothing", stream, shape, nothing, argument); });
    INFO(message);
    CHECK(contains(message, text));
  };
  says({.grid = 1, .block = 1025}, "a block of 1025 x 1 x 1 threads: 1 to 1024 are possible", p);
  says({.grid = 1, .block = 0}, "a block of 0 x 1 x 1 threads", p);
  says({.grid = dim3(1, 65536), .block = 1}, "a grid of 1 x 65536 x 1 blocks", p);
  says({.grid = 1, .block = 1, .shared_bytes = 232449}, "only dynamic shared memory up to 232448 bytes", p);
  int host = 0;
  says({.grid = 1, .block = 1}, "a kernel argument points to memory that the device cannot see", &host);
  CHECK(launch_on(static_cast<cudaStream_t>(stream.native()), {.grid = 1, .block = 1, .shared_bytes = 50000},
                  nothing, p) == cudaErrorInvalidValue);
  CHECK(contains(cudaGetErrorString(cudaErrorInvalidValue),
                 "50000 bytes of dynamic shared memory, 49152 allowed"));
  CHECK(launch_on(nullptr, {.grid = 1, .block = 1}, nothing, p) == cudaErrorInvalidResourceHandle);
  launch("nothing", stream, {.grid = dim3(0, 1), .block = 1}, nothing, p);  // nothing to do is no error
  launch("just enough", stream, {.grid = 1, .block = 1, .shared_bytes = 40960}, static_beside_dynamic<2048>,
         p);
  launch("just enough", stream, {.grid = 1, .block = 1, .shared_bytes = 230400}, static_beside_all, p);
  stream.synchronize();
}

TEST_CASE("memory is poisoned: what was not written is NaN") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer out(stream, DType::f32, {32});
  for_each_order([&] {
    launch("uninitialised", stream, {.grid = 1, .block = 32}, uninitialised, device_pointer<float>(out));
    auto values = out.floats();
    CHECK(std::isnan(values[3]));
    CHECK(values[4] == 1.0f);
  });
  float* fresh = static_cast<float*>(cuda::allocate(0, 64));
  float copy[16];
  cuda::copy(copy, fresh, sizeof copy, stream.native());
  stream.synchronize();
  CHECK(std::isnan(copy[0]));
  cuda::release(0, fresh);
}

TEST_CASE("data of cp.async do not exist before the wait") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer in(stream, DType::f32, {4}, std::vector<float>(4, 5.0f)), out(stream, DType::f32, {2});
  launch("copy", stream, {.grid = 1, .block = 32}, copy_without_wait,
         static_cast<const float*>(device_pointer<float>(in)), device_pointer<float>(out));
  auto values = out.floats();
  CHECK(std::isnan(values[0]));
  CHECK(values[1] == 5.0f);
}

TEST_CASE("runtime calls check their arguments") {
  Stream stream = Stream::cuda(0);
  auto* native = static_cast<cudaStream_t>(stream.native());
  DeviceBuffer buffer(stream, DType::f32, {8});
  float* device = device_pointer<float>(buffer);
  std::vector<float> host(100);
  CHECK(cudaMemcpyAsync(device, host.data(), 8, cudaMemcpyDeviceToHost, native) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(device, host.data(), 36, cudaMemcpyDefault, native) == cudaErrorInvalidValue);
  CHECK(contains(cudaGetErrorString(cudaErrorInvalidValue), "36 bytes reach past the end of an allocation"));
  CHECK(cudaMemsetAsync(host.data(), 0, 4, native) == cudaErrorInvalidValue);
  CHECK(cudaFree(device + 1) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(device) == cudaErrorInvalidValue);
  CHECK(cudaSetDevice(8) == cudaErrorInvalidDevice);
  cudaStream_t blocking = nullptr;
  CHECK(cudaStreamCreateWithPriority(&blocking, cudaStreamDefault, 0) == cudaErrorInvalidValue);
  CHECK_THROWS_AS(cuda::allocate(0, size_t{9} << 30), MemoryError);
  CHECK(cuda::memory_info(0).free_bytes < cuda::memory_info(0).total_bytes);
}

TEST_CASE("a thread that has chosen no GPU is told so before it has a context on the first") {
  Stream stream = Stream::cuda(0);
  DeviceBuffer buffer(stream, DType::f32, {8});
  std::vector<std::string> said;
  std::thread([&] {
    const auto note = [&](const std::function<void()>& call) {
      try {
        call();
      } catch (const DeviceError& error) {
        said.emplace_back(error.what());
      }
    };
    note([&] { stream.synchronize(); });
    note([&] { cuda::fill_zero(device_pointer<float>(buffer), 4, stream.native()); });
    note([&] { Buffer::pinned(stream.device(), 8); });
    note([&] { Event(stream.device()).record(stream); });  // chooses
    note([&] { stream.synchronize(); });
  }).join();
  REQUIRE(said.size() == 3);
  for (const std::string& text : said) CHECK(contains(text, "in a thread that has chosen no GPU"));
}
