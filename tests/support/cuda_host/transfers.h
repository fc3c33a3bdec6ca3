#pragma once

#include <cuda_runtime_api.h>

#include "graphs.h"
#include "memory.h"
#include "sanitizer.h"
#include "streams.h"

namespace ottava::cuda_host {

/// Enqueues f() on the stream under its identity, with device memory accessible.
template <class F>
cudaError_t enqueue_transfer(cudaStream_t handle, F f) {
  auto lock = lock_layer();
  Stream* stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  return submit(*stream, [f](Stream& on) {
    enqueue(on, {[f](Stream& s) {
              DeviceAccess access;
              as_identity(s.identity, f);
              return cudaSuccess;
            }});
  });
}

}  // namespace ottava::cuda_host
