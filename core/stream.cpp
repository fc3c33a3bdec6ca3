#include "core/stream.h"

#include <chrono>
#include <utility>

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

Stream Stream::cuda(int index) {
  Stream stream;
  stream.device_ = stream.target_ = {DeviceType::cuda, index};
  stream.native_ = cuda::stream_create(index);
  stream.blas_plans_ = cuda::create_blas_plans(index);
  return stream;
}

Stream::Stream(Stream&& other) noexcept
    : device_(other.device_),
      target_(other.target_),
      recorder_(other.recorder_),
      matmul_cache_(std::move(other.matmul_cache_)),
      blas_plans_(std::exchange(other.blas_plans_, nullptr)),
      native_(std::exchange(other.native_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(target_, other.target_);
  std::swap(recorder_, other.recorder_);
  std::swap(matmul_cache_, other.matmul_cache_);
  std::swap(blas_plans_, other.blas_plans_);
  std::swap(native_, other.native_);
  return *this;
}

Stream::~Stream() {
  if (blas_plans_) cuda::destroy_blas_plans(blas_plans_);
  if (native_) cuda::stream_destroy(native_);
}

void Stream::synchronize() {
  if (native_) cuda::stream_synchronize(native_);
}

Event::Event(Device device) : device_(device) {
  if (device.type == DeviceType::cuda) native_ = cuda::event_create(device.index);
}
Event::Event(Event&& other) noexcept
    : device_(other.device_),
      native_(std::exchange(other.native_, nullptr)),
      host_seconds_(other.host_seconds_) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(native_, other.native_);
  std::swap(host_seconds_, other.host_seconds_);
  return *this;
}
Event::~Event() {
  if (native_) cuda::event_destroy(native_);
}

void Event::record(Stream& stream) {
  if (native_) return cuda::event_record(native_, stream.native());
  host_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
void Event::wait(Stream& stream) const {
  if (native_) cuda::event_wait(native_, stream.native());
}
void Event::synchronize() const {
  if (native_) cuda::event_synchronize(native_);
}
double Event::milliseconds_since(const Event& start) const {
  if (native_) return cuda::event_milliseconds(start.native_, native_);
  return (host_seconds_ - start.host_seconds_) * 1e3;
}

}  // namespace ottava
