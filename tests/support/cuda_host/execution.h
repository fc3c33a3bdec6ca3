#pragma once

// What the device language (device.h) needs from the layer. Everything declared here runs uninstrumented.

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <source_location>

namespace ottava::cuda_host {

using Site = std::source_location;

/// What a kernel sees of its thread and block; null outside kernels.
struct ThreadView {
  uint3 index{};
  unsigned lane = 0;
  unsigned rank = 0;  ///< linear index in the block
};
struct BlockView {
  uint3 index{};
  dim3 block_dim, grid_dim;
};
extern ThreadView* this_thread;
extern BlockView* this_block;

/// Abandons the running grid; the message reaches the host as the text of cudaErrorLaunchFailure.
[[noreturn]] void fail_kernel(const Site& site, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

enum class Vote { any, all, count };
/// __syncthreads and its voting forms: all threads of the block that have not exited, at one call site.
int block_barrier(const char* name, int predicate, Vote vote, const Site& site);

/// Brings the lanes of `mask` together: each gives a payload on its own stack, the last to arrive calls
/// function(payloads, lanes that take part, site), then all continue. Only `orders_memory` makes earlier
/// writes of one lane visible to another, as in CUDA, where __syncwarp does and shuffles do not.
using LaneFunction = void (*)(void** payloads, unsigned lanes, const Site& site);
void warp_collective(const char* name, unsigned mask, bool orders_memory, void* payload,
                     LaneFunction function, const Site& site);

/// d += a b for one 16x8x16 tile, fragments as in the PTX ISA ("Matrix Fragments for mma.m16n8k16").
void mma_m16n8k16_bf16(float* d, const uint32_t* a, const uint32_t* b, const Site& site);
/// The exchange half of ldmatrix: `row` is the 8x16-bit row that this lane has read.
void exchange_matrix(uint32_t* out, int matrices, bool transposed, const uint16_t* row, const Site& site);

/// The block's copy of one static shared array, made at first use and filled with 0xFF. Fails where the
/// block's arrays and its dynamic shared memory are together more than the launch may have.
void* shared_array(const void* key, size_t bytes, const Site& site);
void* dynamic_shared();
/// Fails unless [p, p + bytes) lies in one shared array of this block.
void check_shared(const void* p, size_t bytes, const Site& site);

/// cp.async of this thread: pushed copies are handed back by next_copy when their group has to be complete.
struct AsyncCopy {
  void* destination;
  const void* source;  ///< null: zeros
  int bytes;
  unsigned group;
};
void push_copy(const AsyncCopy& copy, const Site& site);
void commit_copies();
/// The next copy that must be done for at most `pending` groups to remain; false when there is none.
bool next_copy(unsigned pending, AsyncCopy& copy);

/// __threadfence: orders everything before any fence with everything after a later one (more than CUDA
/// promises).
void fence();

/// The number of streaming multiprocessors that the GPUs report.
constexpr int kSmCount = 4;

/// Bytes of shared memory that a block may have on a GPU of this capability (89 for 8.9), once it has asked
/// (cudaFuncSetAttribute). From the CUDA programming guide's table of compute capabilities.
constexpr size_t shared_at_most(int capability) {
  switch (capability) {
    case 75:
      return 65536;
    case 80:
    case 87:
      return 166912;
    case 86:
    case 89:
    case 120:
    case 121:
      return 101376;
    default:
      return capability < 80 ? 98304 : 232448;
  }
}

/// One kernel call. `run` calls the kernel with the stored arguments, `drop` frees them.
struct Call {
  const void* kernel;
  void (*run)(void* arguments);
  void (*drop)(void* arguments);
  void* arguments;
};
struct Geometry {
  dim3 grid, block;
  size_t shared_bytes;      ///< dynamic
  size_t static_limit;      ///< of static ones beside dynamic ones
  size_t shared_limit = 0;  ///< static ones included; set by enqueue_grid()
};
/// Enqueues on a cudaStream_t; returns a cudaError_t. Frees the arguments in every case.
int enqueue_grid(void* stream, const Geometry& geometry, const Call& call);
/// Enqueues host code that stands for a library's kernel: it may touch device memory, under the stream's
/// identity.
int enqueue_work(void* stream, const Call& call);
/// Lets the work that is running claim to have taken this long, by the times of events, not the host's clock.
void spend(double milliseconds);
/// True when the device can read p.
bool is_device_visible(const void* p);
/// Bytes of device memory from p to the end of its allocation; 0 for other memory.
size_t device_bytes_behind(const void* p);
/// What cudaGetErrorString says to the calling thread about cudaErrorLaunchFailure, cudaErrorInvalidValue and
/// their like: ranks are threads, and none must read another's. The text of a failed stream is kept until
/// somebody is told of the failure.
void explain(const char* format, ...) __attribute__((format(printf, 1, 2)));
const char* explanation();

}  // namespace ottava::cuda_host
