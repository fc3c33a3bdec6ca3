#include "core/stream.h"

#include <chrono>

#include "core/cost.h"
#include "core/cpu/matmul_cache.h"
#include "core/cuda/blas_plans.h"
#include "core/cuda/runtime.h"

namespace ottava {

Stream Stream::cpu() {
  Stream stream;
  stream.matmul_cache_ = std::make_unique<cpu::MatmulCache>();
  return stream;
}

Stream Stream::meta(CostRecorder& recorder, Device target) {
  Stream stream;
  stream.device_ = {DeviceType::meta, 0};
  stream.target_ = target;
  stream.recorder_ = &recorder;
  stream.matmul_cache_ = std::make_unique<cpu::MatmulCache>();
  return stream;
}

Stream Stream::cuda(int index, StreamPriority priority) {
  Stream stream;
  stream.device_ = stream.target_ = {DeviceType::cuda, index};
  stream.native_.reset(cuda::stream_create(index, priority));
  stream.blas_plans_ = std::make_unique<cuda::BlasPlans>(index);
  return stream;
}

Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

void Stream::Destroy::operator()(void* native) const noexcept { cuda::stream_destroy(native); }

void Stream::synchronize() {
  if (native_) cuda::stream_synchronize(native());
}

Event::Event(Device device) : device_(device) {
  if (device.type == DeviceType::cuda) native_.reset(cuda::event_create(device.index));
}

void Event::Destroy::operator()(void* native) const noexcept { cuda::event_destroy(native); }

void Event::record(Stream& stream) {
  if (native_) return cuda::event_record(native(), stream.native());
  host_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
void Event::wait(Stream& stream) const {
  if (native_) cuda::event_wait(native(), stream.native());
}
void Event::synchronize() const {
  if (native_) cuda::event_synchronize(device_.index, native());
}
double Event::milliseconds_since(const Event& start) const {
  if (native_) return cuda::event_milliseconds(start.native(), native());
  return (host_seconds_ - start.host_seconds_) * 1e3;
}

}  // namespace ottava
