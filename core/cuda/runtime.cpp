#include "core/cuda/runtime.h"

#include <cuda_runtime.h>

#include "core/cuda/own_kernels.h"
#include "core/error.h"

namespace ottava::cuda {
namespace {

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail<DeviceError>("cuda", "{} failed: {}", call, cudaGetErrorString(status));
}

struct Probe {
  int count = 0;
  std::string reason;
};

Probe probe() {
  Probe result;
  cudaError_t status = cudaGetDeviceCount(&result.count);
  if (status == cudaSuccess && result.count > 0) return result;
  cudaGetLastError();
  result.count = 0;
  int driver = 0, toolkit = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&toolkit);
  cudaGetLastError();
  auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  if (driver == 0) {
    result.reason = "no NVIDIA driver is loaded on this machine";
  } else if (driver / 1000 < toolkit / 1000) {
    result.reason =
        fmt::format("the NVIDIA driver supports CUDA {}, but this binary needs {}: update the driver",
                    version(driver), version(toolkit));
  } else {
    result.reason = fmt::format("no usable GPU was found ({})", cudaGetErrorString(status));
  }
  return result;
}

const Probe& probed() {
  static const Probe result = probe();
  return result;
}

cudaStream_t as_stream(void* s) { return static_cast<cudaStream_t>(s); }
cudaDeviceProp properties_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}
cudaEvent_t as_event(void* e) { return static_cast<cudaEvent_t>(e); }

}  // namespace

int device_count() { return probed().count; }
std::string unavailable_reason() { return probed().reason; }

void* stream_create(int device, StreamPriority priority) {
  if (device_count() == 0) fail<DeviceError>("cuda", "{}", unavailable_reason());
  check(cudaSetDevice(device), "cudaSetDevice");
  require_own_kernels(device);
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     priority == StreamPriority::highest ? highest : lowest),
        "cudaStreamCreate");
  return stream;
}
void stream_destroy(void* stream) noexcept { cudaStreamDestroy(as_stream(stream)); }
void stream_synchronize(void* stream) {
  check(cudaStreamSynchronize(as_stream(stream)), "cudaStreamSynchronize");
}

void* event_create(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return event;
}
void event_destroy(void* event) noexcept { cudaEventDestroy(as_event(event)); }
void event_record(void* event, void* stream) {
  check(cudaEventRecord(as_event(event), as_stream(stream)), "cudaEventRecord");
}
void event_wait(void* event, void* stream) {
  check(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0), "cudaStreamWaitEvent");
}
void event_synchronize(int device, void* event) {
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaEventSynchronize(as_event(event)), "cudaEventSynchronize");
}
double event_milliseconds(void* start, void* stop) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, as_event(start), as_event(stop)), "cudaEventElapsedTime");
  return ms;
}

void* allocate(int device, size_t bytes) {
  check(cudaSetDevice(device), "cudaSetDevice");
  void* data = nullptr;
  cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    MemoryInfo info = memory_info(device);
    fail<MemoryError>("cuda", "GPU {} cannot allocate {} bytes: {} of {} bytes are free", device, bytes,
                      info.free_bytes, info.total_bytes);
  }
  check(status, "cudaMalloc");
  return data;
}
void release(int, void* data) noexcept { cudaFree(data); }
void* allocate_pinned(size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail<MemoryError>("cuda", "this machine cannot allocate {} bytes of pinned memory", bytes);
  }
  check(status, "cudaHostAlloc");
  return data;
}
void release_pinned(void* data) noexcept { cudaFreeHost(data); }
void copy(void* destination, const void* source, size_t bytes, void* stream) {
  check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, as_stream(stream)), "cudaMemcpyAsync");
}
void fill_zero(void* data, size_t bytes, void* stream) {
  check(cudaMemsetAsync(data, 0, bytes, as_stream(stream)), "cudaMemsetAsync");
}

// Thread-local: other threads (NCCL's watch, readers, savers) may use CUDA meanwhile.
void capture_begin(void* stream) {
  check(cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}
CapturedGraph capture_end(void* stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(as_stream(stream), &graph), "cudaStreamEndCapture");
  CapturedGraph captured{};
  cudaGraphExec_t executable = nullptr;
  cudaError_t status = cudaGraphGetNodes(graph, nullptr, &captured.nodes);
  // Without it, what the graph's streams recorded has the priority of the one that launches it.
  if (status == cudaSuccess)
    status = cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  captured.executable = executable;
  return captured;
}
void graph_launch(void* executable, void* stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable), as_stream(stream)), "cudaGraphLaunch");
}
void graph_destroy(void* executable) noexcept {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable));
}

MemoryInfo memory_info(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  MemoryInfo info{};
  check(cudaMemGetInfo(&info.free_bytes, &info.total_bytes), "cudaMemGetInfo");
  return info;
}
std::string device_name(int device) { return properties_of(device).name; }
std::string device_uuid(int device) {
  const cudaUUID_t uuid = properties_of(device).uuid;
  std::string text = "GPU-";
  for (const char byte : uuid.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}
int compute_capability(int device) {
  return attribute(cudaDevAttrComputeCapabilityMajor, device) * 10 +
         attribute(cudaDevAttrComputeCapabilityMinor, device);
}

int sm_count(int device) { return attribute(cudaDevAttrMultiProcessorCount, device); }

int shared_bytes_per_block(int device) { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device); }

}  // namespace ottava::cuda
