#pragma once

#include <driver_types.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "block.h"

namespace ottava::cuda_host {

struct Stream;

/// One thing that a stream does. It runs when everything before it on the stream has and `ready` (if given) says so;
/// `waits_for` names the stream to advance meanwhile. Runs under the layer's lock, as the host's identity.
struct Task {
  std::function<cudaError_t(Stream&)> run;
  std::function<bool()> ready = nullptr;
  Stream* waits_for = nullptr;
  std::unique_ptr<char[]> order = nullptr;  ///< orders the host's work before the enqueueing before the task
};

struct Stream {
  void* identity = nullptr;
  unsigned slot = 0;
  GridOrder order;
  std::deque<Task> queue;
  cudaError_t error = cudaSuccess;  ///< the first failure not yet reported
  bool running = false;
};

struct Event {
  Stream* stream = nullptr;  ///< of the last record
  uint64_t recorded = 0, completed = 0;
  double milliseconds = 0;
  char order[8];
};

/// One lock for the whole layer: host threads (ranks) may call in at the same time, grids run one at a time.
std::unique_lock<std::mutex> lock_layer();

Stream* create_stream();
/// Runs what is left; reports and clears the stream's error.
cudaError_t destroy_stream(Stream* stream);
/// Fails for null (the legacy default stream orders itself with all others: never wanted) and unknown handles.
Stream* find_stream(void* handle);
void enqueue(Stream& stream, Task task);
/// Runs work of this and other streams, in the order that the settings ask for, until done() holds. A wait that
/// nothing ends for 60 seconds is reported as cudaErrorLaunchTimeout.
cudaError_t run_until(std::unique_lock<std::mutex>& lock, Stream* target, const std::function<bool()>& done);
/// Everything on the stream; the host is then ordered after it.
cudaError_t synchronize(std::unique_lock<std::mutex>& lock, Stream& stream);
cudaError_t synchronize_all(std::unique_lock<std::mutex>& lock);
bool is_idle(const Stream& stream);

}  // namespace ottava::cuda_host
