#pragma once

#include <driver_types.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "block.h"

namespace ottava::cuda_host {

struct Stream;
struct Capture;  // graphs.h

/// One thing that a stream does. It runs when everything before it on the stream has and `ready` (if given)
/// says so; `waits_for` names the stream to advance meanwhile. Runs under the layer's lock, as the host's
/// identity. `is_late`: when nothing waits for it, everything else that can run goes first.
struct Task {
  std::function<cudaError_t(Stream&)> run;
  std::function<bool()> ready = nullptr;
  std::function<Stream*()> waits_for = nullptr;
  bool is_late = false;
  std::unique_ptr<char[]> order = nullptr;  ///< orders the host's work before the enqueueing before the task
};

struct Stream {
  int gpu = 0;
  int priority = 0;
  void* identity = nullptr;
  unsigned slot = 0;
  GridOrder order;
  std::deque<Task> queue;
  cudaError_t error = cudaSuccess;  ///< the first failure not yet reported
  std::string reason;               ///< what was said about it
  bool running = false;
  bool is_destroyed = false;                   ///< no longer has a handle, and ends with its work
  std::shared_ptr<Capture> capture = nullptr;  ///< while it takes part in one
  int lane = 0;                                ///< which of the capture's streams it is
};

struct Event {
  int gpu = 0;
  Stream* stream = nullptr;  ///< of the last record
  uint64_t recorded = 0, completed = 0;
  double milliseconds = 0;
  std::shared_ptr<Capture> capture = nullptr;  ///< of the last record, when that was captured
  std::vector<int> after = {};                 ///< the captured work before it
  char order[8];
};

/// One lock for the whole layer: host threads (ranks) may call in at the same time, grids run one at a time.
std::unique_lock<std::mutex> lock_layer();

/// GPUs of the layer, and the one that the calling thread has chosen with cudaSetDevice, or kNoGpu.
constexpr int kGpus = 8, kNoGpu = -1;
int& current_gpu();
/// Fails in a thread that has chosen no GPU. There CUDA would make a context on GPU 0, which every rank of a
/// machine would then take half a gigabyte of.
cudaError_t require_chosen_gpu(const char* call);
/// The same for calls whose result nobody reads: the program ends.
void insist_on_chosen_gpu(const char* call);

/// The GPU whose stream does the task that is under way.
int gpu_at_work();

/// Makes a stream on the current GPU.
Stream* create_stream();
/// Reports and clears the stream's error.
cudaError_t destroy_stream(Stream* stream);
/// As a GPU does: what the stream still has to do is done, but nothing waits for it.
cudaError_t abandon_stream(Stream* stream);
/// The stream's failure, if there was one. It passes from the stream to the calling thread, which has to
/// explain it.
cudaError_t report(Stream& stream);
/// Fails for unknown handles and for null: the legacy default stream orders itself with all others, which is
/// never wanted.
Stream* find_stream(void* handle);
void enqueue(Stream& stream, Task task);
/// To be called when something that a task's `ready` asks about has changed other than by a task.
void wake();
/// Runs work of this and other streams, in the order that the settings ask for, until done() holds. A wait
/// that nothing ends for 60 seconds is reported as cudaErrorLaunchTimeout.
cudaError_t run_until(std::unique_lock<std::mutex>& lock, Stream* target, const std::function<bool()>& done);
/// Runs everything on the stream; the host is then ordered after it.
cudaError_t synchronize(std::unique_lock<std::mutex>& lock, Stream& stream);
/// The same for all streams of a GPU.
cudaError_t synchronize_gpu(std::unique_lock<std::mutex>& lock, int gpu);
bool is_idle(const Stream& stream);
/// Takes all streams out of the capture.
void leave_capture(const Capture& capture);

}  // namespace ottava::cuda_host
