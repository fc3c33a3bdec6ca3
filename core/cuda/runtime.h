#pragma once

#include <cstddef>
#include <string>

#include "core/stream.h"

/// The few CUDA runtime calls that host code makes, without CUDA headers. A build without CUDA links
/// runtime_absent.cpp: device_count() is 0, unavailable_reason() says so, and everything else that is not
/// noexcept throws DeviceError. So does any call that CUDA refuses. Those that make a
/// stream, an event or memory of a device, and memory_info(), make it this thread's current device.
namespace ottava::cuda {

/// GPUs that this process can use; why there are none, as cuda_unavailable_reason().
int device_count();
std::string unavailable_reason();

/// cudaStream_t and cudaEvent_t of a device, as void*; streams are non-blocking. stream_create() throws
/// DeviceError if this program has no kernels for the GPU.
void* stream_create(int device, StreamPriority priority = StreamPriority::normal);
void stream_destroy(void* stream) noexcept;
void stream_synchronize(void* stream);

void* event_create(int device);
void event_destroy(void* event) noexcept;
void event_record(void* event, void* stream);
void event_wait(void* event, void* stream);
/// Makes `device` this thread's current device, since a thread without one would be given a context on device
/// 0.
void event_synchronize(int device, void* event);
double event_milliseconds(void* start, void* stop);

/// Memory of a device, and pinned memory of the host. Both throw MemoryError if there is too little,
/// allocate() with the bytes that are free.
void* allocate(int device, size_t bytes);
void release(int device, void* data) noexcept;
void* allocate_pinned(size_t bytes);
void release_pinned(void* data) noexcept;
/// Copies in any direction (the addresses tell which), ordered on the stream.
void copy(void* destination, const void* source, size_t bytes, void* stream);
void fill_zero(void* data, size_t bytes, void* stream);
/// From capture_begin() on, work on the stream (and on streams that wait for its events) is recorded, not
/// done, and this thread may neither allocate nor wait. capture_end() returns the graph, ready to be
/// launched, and its number of nodes.
struct CapturedGraph {
  void* executable;
  size_t nodes;
};
void capture_begin(void* stream);
CapturedGraph capture_end(void* stream);
void graph_launch(void* executable, void* stream);
void graph_destroy(void* executable) noexcept;
/// Free and total bytes of the GPU.
struct MemoryInfo {
  size_t free_bytes, total_bytes;
};
MemoryInfo memory_info(int device);
std::string device_name(int device);
/// The driver's name of this GPU among all GPUs: "GPU-" and 32 hexadecimal digits.
std::string device_uuid(int device);
/// Compute capability: 90 for sm_90.
int compute_capability(int device);
int sm_count(int device);
/// Bytes of dynamic shared memory that a block may ask for: 232,448 on sm_90, 101,376 on sm_86, 89 and 120.
int shared_bytes_per_block(int device);

}  // namespace ottava::cuda
