#pragma once

#include <memory>
#include <utility>

#include "core/device.h"

namespace ottava {

class CostRecorder;
namespace cpu {
class MatmulCache;
}
namespace cuda {
class BlasPlans;
}

/// Of work that could begin when a multiprocessor becomes free, that of the highest stream does.
enum class StreamPriority { normal, highest };

/// An ordered queue of work on one device. Every operation takes one. On `cpu` work is done before the call
/// returns, on `cuda` it is enqueued, on `meta` its cost is recorded. Move-only; used by one thread at a
/// time.
class Stream {
 public:
  /// A stream on the calling thread's CPU. Owns the rank's cache of matmul primitives.
  static Stream cpu();
  /// Records into `recorder`, which must outlive the stream. `target` is the device being planned for.
  static Stream meta(CostRecorder& recorder, Device target);
  /// A new non-blocking CUDA stream. Throws DeviceError when the GPU cannot be used.
  static Stream cuda(int index, StreamPriority priority = StreamPriority::normal);

  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  Device device() const { return device_; }
  DeviceType type() const { return device_.type; }
  bool is_meta() const { return type() == DeviceType::meta; }
  /// On `meta` the device being planned for; elsewhere device().
  Device target() const { return target_; }
  /// What is done from now on is also recorded, as on `meta`, in `recorder`, which must outlive the stream.
  void record_into(CostRecorder& recorder) { recorder_ = &recorder; }
  /// True on `meta` and after record_into().
  bool records() const { return recorder_ != nullptr; }
  /// Only where records() is true.
  CostRecorder& recorder() const { return *recorder_; }
  /// Only on `cpu`, and on `meta` to know what a CPU would do.
  cpu::MatmulCache& matmul_cache() const { return *matmul_cache_; }
  /// Only on `cuda`.
  cuda::BlasPlans& blas_plans() const { return *blas_plans_; }
  /// The cudaStream_t; null elsewhere.
  void* native() const { return native_.get(); }

  /// While it lives nothing is recorded: what an operation calls is part of it.
  class Unrecorded {
   public:
    explicit Unrecorded(Stream& stream)
        : stream_(stream), recorder_(std::exchange(stream.recorder_, nullptr)) {}
    Unrecorded(const Unrecorded&) = delete;
    ~Unrecorded() { stream_.recorder_ = recorder_; }

   private:
    Stream& stream_;
    CostRecorder* recorder_;
  };

  /// Waits until all work enqueued so far is done. Throws DeviceError if it failed.
  void synchronize();

 private:
  Stream() = default;
  Device device_, target_;
  CostRecorder* recorder_ = nullptr;
  struct Destroy {
    void operator()(void* native) const noexcept;
  };
  std::unique_ptr<cpu::MatmulCache> matmul_cache_;
  std::unique_ptr<void, Destroy> native_;
  std::unique_ptr<cuda::BlasPlans> blas_plans_;
};

/// A point in a stream's work that another stream can wait for. On `cpu` and `meta` it is always reached.
class Event {
 public:
  explicit Event(Device device);

  void record(Stream& stream);
  /// Work enqueued on `stream` after this call starts after the recorded point.
  void wait(Stream& stream) const;
  /// Blocks the host until the recorded point is reached.
  void synchronize() const;
  /// Milliseconds from `start` to this event; both must have been reached. Host time on `cpu`.
  double milliseconds_since(const Event& start) const;
  void* native() const { return native_.get(); }

 private:
  struct Destroy {
    void operator()(void* native) const noexcept;
  };
  Device device_;
  std::unique_ptr<void, Destroy> native_;
  double host_seconds_ = 0;
};

}  // namespace ottava
