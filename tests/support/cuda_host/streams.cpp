#include "streams.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "execution.h"
#include "sanitizer.h"
#include "settings.h"

namespace ottava::cuda_host {
namespace {

std::mutex layer_mutex;
std::condition_variable progress;
std::vector<std::shared_ptr<Stream>> streams;
unsigned created = 0;
int working_gpu = 0;

bool exists(const Stream* stream) {
  return std::ranges::any_of(streams, [&](const auto& s) { return s.get() == stream; });
}

bool can_run(const Stream& stream) {
  if (stream.queue.empty() || stream.running) return false;
  const Task& head = stream.queue.front();
  return !head.ready || head.ready();
}

// A test must not pass because an error was not asked for.
cudaError_t end_with_its_errors(Stream* stream) {
  const cudaError_t status = destroy_stream(stream);
  if (status == cudaSuccess) return status;
  std::fprintf(stderr, "cuda_host: a stream is destroyed with an unreported error: %s\n",
               cudaGetErrorString(status));
  std::_Exit(70);
}

void run_head(Stream& stream) {
  Task task = std::move(stream.queue.front());
  stream.queue.pop_front();
  as_identity(stream.identity, [&] { acquire(task.order.get()); });
  stream.running = true;
  working_gpu = stream.gpu;
  cudaError_t status = task.run(stream);
  stream.running = false;
  if (stream.error == cudaSuccess && status != cudaSuccess) {
    stream.error = status;
    stream.reason = explanation();
  }
  progress.notify_all();
  if (stream.is_destroyed && stream.queue.empty()) end_with_its_errors(&stream);
}

enum class Asked { no, yes };  // whether somebody waits for the work

Stream* any_runnable(Asked asked) {
  std::vector<Stream*> runnable, late;
  for (auto& stream : streams) {
    if (can_run(*stream)) (stream->queue.front().is_late ? late : runnable).push_back(stream.get());
  }
  if (runnable.empty() && asked == Asked::yes) runnable.swap(late);
  if (runnable.empty()) return nullptr;
  bool random = settings().streams == Streams::random;
  return runnable[random ? next_random() % runnable.size() : 0];
}

// The stream whose work brings `target` on, and no other if that can be known.
Stream* needed_for(Stream* target) {
  for (size_t hops = 0; target && hops <= streams.size(); ++hops) {
    if (!exists(target)) return nullptr;
    if (can_run(*target)) return target;
    const bool knows = !target->queue.empty() && target->queue.front().waits_for;
    target = knows ? target->queue.front().waits_for() : nullptr;
  }
  return nullptr;
}

}  // namespace

std::unique_lock<std::mutex> lock_layer() { return std::unique_lock(layer_mutex); }

int& current_gpu() {
  static thread_local int gpu = kNoGpu;
  return gpu;
}

cudaError_t require_chosen_gpu(const char* call) {
  if (current_gpu() != kNoGpu) return cudaSuccess;
  explain("%s in a thread that has chosen no GPU, which makes a context on GPU 0: cudaSetDevice comes first",
          call);
  return cudaErrorDeviceUninitialized;
}

void insist_on_chosen_gpu(const char* call) {
  if (require_chosen_gpu(call) == cudaSuccess) return;
  std::fprintf(stderr, "cuda_host: %s\n", explanation());
  std::_Exit(70);
}

int gpu_at_work() { return working_gpu; }

Stream* create_stream() {
  auto& stream = streams.emplace_back(std::make_shared<Stream>());
  stream->identity = make_identity();
  stream->slot = created++;
  stream->gpu = current_gpu();
  return stream.get();
}

cudaError_t destroy_stream(Stream* stream) {
  cudaError_t status = report(*stream);
  destroy_identity(stream->identity);
  std::erase_if(streams, [&](const auto& s) { return s.get() == stream; });
  return status;
}

cudaError_t abandon_stream(Stream* stream) {
  if (is_idle(*stream)) return end_with_its_errors(stream);
  stream->is_destroyed = true;
  return cudaSuccess;
}

cudaError_t report(Stream& stream) {
  if (stream.error != cudaSuccess) explain("%s", stream.reason.c_str());
  return std::exchange(stream.error, cudaSuccess);
}

Stream* find_stream(void* handle) {
  if (require_chosen_gpu("work on a stream") != cudaSuccess) return nullptr;
  for (auto& stream : streams) {
    if (stream.get() == handle && !stream->is_destroyed) return stream.get();
  }
  explain(handle ? "the stream does not exist (destroyed?)"
                 : "the legacy default stream is not used: pass a stream");
  return nullptr;
}

void enqueue(Stream& stream, Task task) {
  task.order = std::make_unique<char[]>(8);
  release(task.order.get());
  stream.queue.push_back(std::move(task));
  progress.notify_all();
  if (settings().streams == Streams::lazy) return;
  while (Stream* next = any_runnable(Asked::no)) {
    if (settings().streams == Streams::random && next_random() >> 63) return;
    run_head(*next);
  }
}

void wake() { progress.notify_all(); }

cudaError_t run_until(std::unique_lock<std::mutex>& lock, Stream* target, const std::function<bool()>& done) {
  while (!done()) {
    Stream* next = settings().streams == Streams::random ? nullptr : needed_for(target);
    if (!next) next = any_runnable(Asked::yes);
    if (next) {
      run_head(*next);
    } else if (progress.wait_for(lock, std::chrono::seconds(60)) == std::cv_status::timeout) {
      explain("a stream waits for something that does not come: no progress for 60 s");
      return cudaErrorLaunchTimeout;
    }
  }
  return cudaSuccess;
}

void leave_capture(const Capture& capture) {
  for (auto& stream : streams) {
    if (stream->capture.get() == &capture) stream->capture = nullptr;
  }
}

bool is_idle(const Stream& stream) { return stream.queue.empty() && !stream.running; }

cudaError_t synchronize(std::unique_lock<std::mutex>& lock, Stream& stream) {
  if (cudaError_t status = run_until(lock, &stream, [&] { return is_idle(stream); })) return status;
  if (!exists(&stream)) return cudaSuccess;  // its owner was faster
  as_identity(stream.identity, [&] { release(stream.order.done); });
  acquire(stream.order.done);
  return report(stream);
}

cudaError_t synchronize_gpu(std::unique_lock<std::mutex>& lock, int gpu) {
  cudaError_t first = cudaSuccess;
  const std::vector<std::shared_ptr<Stream>> now = streams;  // they come and go while this thread waits
  for (const std::shared_ptr<Stream>& stream : now) {
    if (stream->gpu != gpu) continue;
    cudaError_t status = synchronize(lock, *stream);
    if (first == cudaSuccess) first = status;
  }
  return first;
}

}  // namespace ottava::cuda_host
