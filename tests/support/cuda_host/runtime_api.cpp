#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "execution.h"
#include "graphs.h"
#include "memory.h"
#include "sanitizer.h"
#include "settings.h"
#include "streams.h"
#include "transfers.h"

// The CUDA runtime's entry points that this project calls, as the execution layer's own functions. A program
// linked with them has eight GPUs of compute capability 9.0.
namespace ottava::cuda_host {
namespace {

constexpr size_t kDeviceBytes = size_t{8} << 30;

thread_local char explained[1200];

using EventHandle = std::shared_ptr<Event>*;
EventHandle as_event(cudaEvent_t e) { return reinterpret_cast<EventHandle>(e); }

// A GPU's own time, in which work takes what it claims: neither a busy machine nor another rank changes a
// measurement.
double spent[kGpus];

double milliseconds_now() { return spent[gpu_at_work()] += 1e-3; }

cudaError_t free_memory(void* p, MemoryKind kind) {
  if (!p) return cudaSuccess;
  const char* call = kind == MemoryKind::device ? "cudaFree" : "cudaFreeHost";
  insist_on_chosen_gpu(call);
  auto lock = lock_layer();
  if (cudaError_t status = forbid_in_capture(call)) return status;
  const int gpu = kind == MemoryKind::device ? gpu_of(p) : current_gpu();
  cudaError_t status = synchronize_gpu(lock, gpu < 0 ? current_gpu() : gpu);  // as the real one does
  if (!release(p, kind)) {
    explain("freed %p, which is not the start of such an allocation", p);
    return cudaErrorInvalidValue;
  }
  return status;
}

}  // namespace

void explain(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  ignore_begin();  // the text goes from the identity of the work that failed to the one that asks
  std::vsnprintf(explained, sizeof explained, format, arguments);
  ignore_end();
  va_end(arguments);
}

const char* explanation() { return explained; }

void spend(double milliseconds) { spent[gpu_at_work()] += milliseconds; }

bool is_device_visible(const void* p) {
  auto lock = lock_layer();
  return !p || kind_of(p) != MemoryKind::none;
}

size_t device_bytes_behind(const void* p) {
  auto lock = lock_layer();
  return kind_of(p) == MemoryKind::device ? bytes_behind(p) : 0;
}

}  // namespace ottava::cuda_host

using namespace ottava::cuda_host;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings().driver == Driver::good ? kGpus : 0;
  if (settings().driver == Driver::without_gpus) return cudaErrorNoDevice;
  return settings().driver == Driver::good ? cudaSuccess : cudaErrorInsufficientDriver;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kGpus) return cudaErrorInvalidDevice;
  current_gpu() = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = std::max(current_gpu(), 0);
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  const Driver driver = settings().driver;
  *version = driver == Driver::none ? 0 : driver == Driver::old ? 11040 : CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->uuid.bytes[15] = static_cast<char>(device);
  std::snprintf(properties->name, sizeof properties->name, "host execution layer");
  properties->totalGlobalMem = kDeviceBytes;
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kSmCount;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(shared_at_most(settings().capability));
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = settings().capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = settings().capability % 10;
      return cudaSuccess;
    default:
      explain("device attribute %d is not known to the host execution layer", attribute);
      return cudaErrorInvalidValue;
  }
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (cudaError_t status = require_chosen_gpu("cudaMemGetInfo")) return status;
  auto lock = lock_layer();
  *total_bytes = kDeviceBytes;
  *free_bytes = kDeviceBytes - device_bytes_in_use(current_gpu());
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "there are GPUs 0 to 7";
    case cudaErrorNotReady:
      return "not ready";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    default:
      return explained;
  }
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  auto lock = lock_layer();
  if (cudaError_t status = forbid_in_capture("cudaMalloc")) return status;
  const int gpu = current_gpu();
  *p = bytes && device_bytes_in_use(gpu) + bytes <= kDeviceBytes ? allocate(bytes, MemoryKind::device, gpu)
                                                                 : nullptr;
  return *p || !bytes ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* p) { return free_memory(p, MemoryKind::device); }
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  auto lock = lock_layer();
  if (cudaError_t status = forbid_in_capture("cudaHostAlloc")) return status;
  *p = bytes && bytes <= kDeviceBytes ? allocate(bytes, MemoryKind::pinned, current_gpu()) : nullptr;
  return *p || !bytes ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* p) { return free_memory(p, MemoryKind::pinned); }

cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  {
    auto lock = lock_layer();
    auto on_device = [](const void* p) { return kind_of(p) == MemoryKind::device; };
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (bytes && kind != cudaMemcpyDefault &&
        (to_device != on_device(destination) || from_device != on_device(source))) {
      explain("cudaMemcpyAsync: kind %d does not fit its pointers", kind);
      return cudaErrorInvalidValue;
    }
    auto too_long = [&](const void* p) { return kind_of(p) != MemoryKind::none && bytes > bytes_behind(p); };
    if (bytes && (too_long(destination) || too_long(source))) {
      explain("cudaMemcpyAsync: %zu bytes reach past the end of an allocation", bytes);
      return cudaErrorInvalidValue;
    }
  }
  // Pageable host memory is staged: read before the call returns, or late if that is asked for; written when
  // it returns.
  auto is_pageable = [](const void* p) {
    auto lock = lock_layer();
    return kind_of(p) == MemoryKind::none;
  };
  if (is_pageable(source) || is_pageable(destination)) {
    auto lock = lock_layer();
    Stream* on = find_stream(stream);
    if (on && on->capture) return forbid_in_capture("cudaMemcpyAsync from or to pageable host memory");
  }
  if (settings().pageable == Pageable::staged && is_pageable(source) && !is_pageable(destination)) {
    void* staged = std::malloc(bytes);
    std::memcpy(staged, source, bytes);
    return enqueue_transfer(stream, [=] {
      std::memmove(destination, staged, bytes);
      std::free(staged);
    });
  }
  cudaError_t status = enqueue_transfer(stream, [=] { std::memmove(destination, source, bytes); });
  return status == cudaSuccess && is_pageable(destination) ? cudaStreamSynchronize(stream) : status;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  {
    auto lock = lock_layer();
    if (bytes && (kind_of(p) == MemoryKind::none || bytes > bytes_behind(p))) {
      explain("cudaMemsetAsync: %zu bytes at %p are not inside one allocation", bytes, p);
      return cudaErrorInvalidValue;
    }
  }
  return enqueue_transfer(stream, [=] { std::memset(p, value, bytes); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = kHighestPriority;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  auto lock = lock_layer();
  if (flags != cudaStreamNonBlocking) {
    explain("streams are made with cudaStreamNonBlocking");
    return cudaErrorInvalidValue;
  }
  if (cudaError_t status = require_chosen_gpu("cudaStreamCreate")) return status;
  Stream* created = create_stream();
  created->priority = priority;
  *stream = reinterpret_cast<cudaStream_t>(created);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  insist_on_chosen_gpu("cudaStreamDestroy");
  auto lock = lock_layer();
  Stream* stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (stream->capture) return forbid_in_capture("cudaStreamDestroy");
  return abandon_stream(stream);
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  auto lock = lock_layer();
  Stream* stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (cudaError_t status = forbid_in_capture("cudaStreamSynchronize", stream)) return status;
  return synchronize(lock, *stream);
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  auto lock = lock_layer();
  Stream* stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (cudaError_t status = forbid_in_capture("cudaStreamQuery", stream)) return status;
  return is_idle(*stream) ? synchronize(lock, *stream) : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
  auto lock = lock_layer();
  if (cudaError_t status = forbid_in_capture("cudaDeviceSynchronize")) return status;
  return synchronize_gpu(lock, current_gpu());
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  if (cudaError_t status = require_chosen_gpu("cudaEventCreate")) return status;
  auto created = std::make_shared<Event>();
  created->gpu = current_gpu();
  *event = reinterpret_cast<cudaEvent_t>(new std::shared_ptr<Event>(std::move(created)));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  insist_on_chosen_gpu("cudaEventDestroy");
  auto lock = lock_layer();
  delete as_event(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
  auto lock = lock_layer();
  Stream* stream = find_stream(on);
  if (!stream) return cudaErrorInvalidResourceHandle;
  std::shared_ptr<Event> event = *as_event(handle);
  if (event->gpu != stream->gpu) {
    explain("cudaEventRecord: an event of GPU %d on a stream of GPU %d", event->gpu, stream->gpu);
    return cudaErrorInvalidResourceHandle;
  }
  event->capture = stream->capture;
  if (event->capture) {
    event->after = captured_before(*stream);
    return cudaSuccess;
  }
  event->stream = stream;
  uint64_t version = ++event->recorded;
  enqueue(*stream, {[event, version](Stream& s) {
    as_identity(s.identity, [&] { release(event->order); });
    event->completed = version;
    event->milliseconds = milliseconds_now();
    return cudaSuccess;
  }});
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t waiting, cudaEvent_t handle, unsigned) {
  auto lock = lock_layer();
  Stream* stream = find_stream(waiting);
  if (!stream) return cudaErrorInvalidResourceHandle;
  std::shared_ptr<Event> event = *as_event(handle);
  if (event->capture || (stream->capture && event->recorded > 0)) return wait_in_capture(*stream, *event);
  uint64_t version = event->recorded;
  if (version == 0) return cudaSuccess;
  enqueue(*stream,
          {[event](Stream& s) {
             as_identity(s.identity, [&] { acquire(event->order); });
             return cudaSuccess;
           },
           [event, version] { return event->completed >= version; }, [event] { return event->stream; }});
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  auto lock = lock_layer();
  std::shared_ptr<Event> event = *as_event(handle);
  if (cudaError_t status = forbid_in_capture("cudaEventSynchronize", nullptr, event.get())) return status;
  uint64_t version = event->recorded;
  cudaError_t status = run_until(lock, event->stream, [&] { return event->completed >= version; });
  acquire(event->order);
  return status;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  auto lock = lock_layer();
  std::shared_ptr<Event> event = *as_event(handle);
  if (cudaError_t status = forbid_in_capture("cudaEventQuery", nullptr, event.get())) return status;
  if (event->completed < event->recorded) return cudaErrorNotReady;
  acquire(event->order);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  auto lock = lock_layer();
  const Event &first = **as_event(start), &last = **as_event(stop);
  for (const Event* event : {&first, &last}) {
    if (cudaError_t status = forbid_in_capture("cudaEventElapsedTime", nullptr, event)) return status;
    if (event->recorded == 0 || event->gpu != first.gpu) {
      explain("cudaEventElapsedTime: an event that was never recorded, or events of two GPUs");
      return cudaErrorInvalidResourceHandle;
    }
    if (event->completed < event->recorded) return cudaErrorNotReady;
  }
  *milliseconds = static_cast<float>(last.milliseconds - first.milliseconds);
  return cudaSuccess;
}

}  // extern "C"
