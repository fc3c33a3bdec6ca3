// Faults that only a sanitizer can see: `faults NAME` commits one, and the test passes when it is reported.
// `faults none` does the same things right and must stay silent.
#include <cstdio>
#include <string>

#include "core/cuda/gpu.h"
#include "core/cuda/runtime.h"

using namespace ottava;
using namespace ottava::cuda;

namespace {

__global__ void transpose_in_block(float* x, bool faulty) {
  OTTAVA_SHARED(float, tile, [128]);
  tile[threadIdx.x] = x[threadIdx.x];
  if (!faulty) __syncthreads();
  x[threadIdx.x] = tile[127 - threadIdx.x];
}
__global__ void exchange_in_warp(float* x, bool faulty) {
  OTTAVA_SHARED(float, tile, [32]);
  tile[threadIdx.x] = x[threadIdx.x];
  if (!faulty) __syncwarp(kAllLanes);
  x[threadIdx.x] = tile[31 - threadIdx.x];
}
__global__ void largest_of_blocks(uint32_t* out, bool faulty) {
  if (threadIdx.x != 0) return;
  if (faulty) {
    if (*out < blockIdx.x) *out = blockIdx.x;
  } else {
    atomicMax(out, blockIdx.x);
  }
}
__global__ void overwrite_stage(const float* in, float* x, bool faulty) {
  OTTAVA_SHARED(float, stage, [128]);
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    cp_async_16(stage + threadIdx.x * 4, in + threadIdx.x * 4, true);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    sum += stage[127 - threadIdx.x];
    if (!faulty) __syncthreads();
  }
  x[threadIdx.x] = sum;
}
__global__ void read(const float* x, float* y, int index) { *y = x[index]; }
__global__ void read_shared(float* y, int index) {
  OTTAVA_SHARED(float, tile, [8]);
  float* p = tile;
  p[0] = 1;
  *y = p[index];
}
__global__ void add_one(float* x) { x[threadIdx.x] += 1; }

}  // namespace

int main(int, char** argv) {
  const std::string name = argv[1];
  if (name == "driver") {  // OTTAVA_CUDA_HOST_DRIVER says which
    try {
      parse_device("cuda");
    } catch (const DeviceError& error) {
      std::printf("auto is %s; %s\n", to_string(parse_device("auto")).c_str(), error.what());
    }
    return 0;
  }
  auto faulty = [&](const char* fault) { return name == fault; };
  Stream stream = Stream::cuda(0), other = Stream::cuda(0);
  auto* x = static_cast<float*>(allocate(0, 128 * sizeof(float)));
  auto* y = static_cast<float*>(allocate(0, 128 * sizeof(float)));
  auto* pinned = static_cast<float*>(allocate_pinned(128 * sizeof(float)));
  const float* input = x;
  fill_zero(x, 128 * sizeof(float), stream.native());
  fill_zero(y, 128 * sizeof(float), stream.native());

  launch("barrier", stream, {.grid = 1, .block = 128}, transpose_in_block, x, faulty("missing_syncthreads"));
  launch("warp", stream, {.grid = 1, .block = 32}, exchange_in_warp, x, faulty("missing_syncwarp"));
  launch("blocks", stream, {.grid = 4, .block = 128}, largest_of_blocks, reinterpret_cast<uint32_t*>(y),
         faulty("race_between_blocks"));
  launch("stage", stream, {.grid = 1, .block = 32}, overwrite_stage, input, y, faulty("overwritten_stage"));
  launch("global", stream, {.grid = 1, .block = 1}, read, input, y, faulty("read_past_the_end") ? 128 : 127);
  launch("shared", stream, {.grid = 1, .block = 1}, read_shared, y, faulty("read_past_shared") ? 8 : 0);

  Event done(stream.device());
  launch("first", stream, {.grid = 1, .block = 32}, add_one, x);
  done.record(stream);
  if (!faulty("missing_event")) done.wait(other);
  launch("second", other, {.grid = 1, .block = 32}, add_one, x);
  copy(pinned, x, 128 * sizeof(float), other.native());
  if (!faulty("missing_synchronize")) other.synchronize();
  volatile float seen = pinned[0];
  other.synchronize();
  pinned[1] = seen;
  copy(x, pinned, 128 * sizeof(float), other.native());
  if (faulty("host_write_during_copy")) pinned[2] = 1;
  other.synchronize();
  if (faulty("host_reads_device")) seen = x[3];
  stream.synchronize();
  release(0, x);
  release(0, y);
  release_pinned(pinned);
  std::puts("done");
}
