#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <memory>

#include "execution.h"
#include "graphs.h"
#include "memory.h"
#include "sanitizer.h"
#include "settings.h"
#include "streams.h"
#include "transfers.h"

// How kernels and host functions come into streams: what a launch may ask for, and who owns its arguments.
namespace ottava::cuda_host {
namespace {

constexpr int kOldestCapability = 80;       // for which CMakeLists.txt says that kernels are compiled
constexpr size_t kSharedByDefault = 49152;  // bytes a block may use without asking
std::map<const void*, int> shared_limits;   // of kernels that asked for more

// What every kernel claims to take, so that many are slower than few.
constexpr double kKernelMilliseconds = 0.001;

/// Fails, or sets the limit of shared memory.
cudaError_t check_geometry(Geometry& g, const void* kernel) {
  size_t threads = size_t{g.block.x} * g.block.y * g.block.z;
  if (threads == 0 || threads > 1024 || g.block.z > 64) {
    explain("a block of %u x %u x %u threads: 1 to 1024 are possible", g.block.x, g.block.y, g.block.z);
    return cudaErrorInvalidConfiguration;
  }
  if (g.grid.x == 0 || g.grid.y == 0 || g.grid.z == 0 || g.grid.x > 2147483647u || g.grid.y > 65535u ||
      g.grid.z > 65535u) {
    explain("a grid of %u x %u x %u blocks: at most 2^31-1 x 65535 x 65535 and none zero", g.grid.x, g.grid.y,
            g.grid.z);
    return cudaErrorInvalidConfiguration;
  }
  auto limit = shared_limits.find(kernel);
  const size_t most = shared_at_most(settings().capability),
               allowed = limit == shared_limits.end() ? kSharedByDefault
                                                      : std::min(most, static_cast<size_t>(limit->second));
  if (g.shared_bytes > allowed) {
    explain("%zu bytes of dynamic shared memory, %zu allowed: cudaFuncSetAttribute raises it up to %zu",
            g.shared_bytes, allowed, most);
    return cudaErrorInvalidValue;
  }
  // What a kernel asks for is dynamic: static arrays come on top, where the GPU has so much.
  g.shared_limit = limit == shared_limits.end() ? kSharedByDefault : most;
  return cudaSuccess;
}

/// A call that may run several times (in a graph). Its arguments are freed after the last time, by nobody in
/// particular: the thread that happens to do it learns nothing about the order of the work.
struct OwnedCall {
  explicit OwnedCall(const Call& c) : call(c) { release(ran); }
  OwnedCall(const OwnedCall&) = delete;
  ~OwnedCall() {
    static void* const nobody = make_identity();
    as_identity(nobody, [&] {
      acquire(ran);
      call.drop(call.arguments);
    });
  }
  Call call;
  char ran[8];
};

cudaError_t run_call(Stream& stream, const Geometry& geometry, OwnedCall& owned) {
  bool ok;
  {
    DeviceAccess access;
    as_identity(stream.identity, [&] { release(stream.order.start); });
    ok = run_grid(geometry, owned.call, stream.order, stream.slot);
  }
  as_identity(stream.identity, [&] {
    acquire(stream.order.done);
    release(owned.ran);
  });
  return ok ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace

int enqueue_grid(void* handle, const Geometry& asked, const Call& call) {
  auto lock = lock_layer();
  Stream* stream = find_stream(handle);
  Geometry geometry = asked;
  cudaError_t status = stream ? check_geometry(geometry, call.kernel) : cudaErrorInvalidResourceHandle;
  if (stream && stream->gpu != current_gpu()) {
    explain("a kernel for a stream of GPU %d is launched by a thread that has chosen GPU %d (cudaSetDevice)",
            stream->gpu, current_gpu());
    status = cudaErrorInvalidResourceHandle;
  }
  if (status != cudaSuccess) {
    call.drop(call.arguments);
    return status;
  }
  auto owned = std::make_shared<OwnedCall>(call);
  return submit(*stream, [geometry, owned](Stream& on) {
    enqueue(on, {[geometry, owned](Stream& s) {
              spend(kKernelMilliseconds);
              return run_call(s, geometry, *owned);
            }});
  });
}

int enqueue_work(void* handle, const Call& call) {
  auto owned = std::make_shared<OwnedCall>(call);
  return enqueue_transfer(static_cast<cudaStream_t>(handle), [owned] {
    owned->call.run(owned->call.arguments);
    release(owned->ran);
  });
}

}  // namespace ottava::cuda_host

using namespace ottava::cuda_host;

extern "C" cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return settings().capability < kOldestCapability ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

extern "C" cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  auto lock = lock_layer();
  const size_t most = shared_at_most(settings().capability);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > static_cast<int>(most)) {
    explain(
        "cudaFuncSetAttribute: only dynamic shared memory up to %zu bytes can be set, got attribute %d, "
        "value %d",
        most, attribute, value);
    return cudaErrorInvalidValue;
  }
  shared_limits[kernel] = value;
  return cudaSuccess;
}
