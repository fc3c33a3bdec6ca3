#include "parallel/comm/comm_thread.h"

#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/threads/start_thread.h"
#include "parallel/calls/waited_time.h"

namespace ottava {
namespace {
constexpr double kGraceSeconds = 10;
constexpr auto kPeriod = std::chrono::milliseconds(250);
}  // namespace

CommThread::CommThread(std::shared_ptr<RankState> state)
    : state_(std::move(state)), shared_(std::make_shared<Shared>()) {
  state_->on_failure([weak = std::weak_ptr(shared_)](const std::string&) {
    if (auto shared = weak.lock()) {
      std::lock_guard lock(shared->mutex);
      shared->changed.notify_all();
    }
  });
  thread_ = start_thread("comm", "communicates with other ranks", [this] { loop(); });
}

CommThread::~CommThread() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_all();
  }
  thread_.join();
}

void CommThread::submit(std::shared_ptr<Counter> counter, std::function<void()> job) {
  std::lock_guard lock(shared_->mutex);
  shared_->queue.push_back({std::move(counter), std::move(job)});
  ++shared_->submitted;
  shared_->changed.notify_all();
}

void CommThread::loop() {
  log::set_rank({state_->rank(), state_->world_size(), state_->rank() != 0});
  std::unique_lock lock(shared_->mutex);
  while (true) {
    shared_->changed.wait(lock, [&] { return shared_->stopping || !shared_->queue.empty(); });
    if (shared_->queue.empty()) return;
    Job job = std::move(shared_->queue.front());
    shared_->queue.pop_front();
    lock.unlock();
    bool carried_out = false;
    if (!state_->failed()) {
      try {
        job.run();
        carried_out = true;
      } catch (const std::exception& error) {
        state_->fail(error.what());
      }
    }
    job.run = nullptr;
    lock.lock();
    if (carried_out) job.counter->done.fetch_add(1, std::memory_order_release);
    job.counter->settled.fetch_add(1, std::memory_order_release);
    ++shared_->ended;
    shared_->changed.notify_all();
  }
}

void CommThread::wait(const Counter& counter, uint64_t ticket) {
  auto done = [&] { return counter.done.load(std::memory_order_acquire) >= ticket; };
  if (done()) return;
  struct Awaited {
    RankState& state;
    explicit Awaited(RankState& s) : state(s) { state.add_waiter(1); }
    ~Awaited() { state.add_waiter(-1); }
  } awaited(*state_);
  std::unique_lock lock(shared_->mutex);
  uint64_t ended = shared_->ended, progress = state_->progress_count();
  WaitedTime idle;
  while (!done()) {
    if (state_->failed()) {
      // The job may be past the point where it matters, and else leaves its buffers now.
      auto settled = [&] { return counter.settled.load(std::memory_order_acquire) >= ticket; };
      wait_for(shared_->changed, lock, kGraceSeconds, settled);
      if (done()) return;
      throw CommError(state_->failure());
    }
    shared_->changed.wait_for(lock, kPeriod, [&] { return done() || state_->failed(); });
    const uint64_t jobs = shared_->ended, moves = state_->progress_count();
    const bool has_ended = std::exchange(ended, jobs) != jobs;
    if (std::exchange(progress, moves) != moves || has_ended) idle.restart();
    if (idle.seconds() > state_->timeout_seconds() + kGraceSeconds && !done() && !state_->failed()) {
      lock.unlock();
      state_->fail(state_->timeout_message());
      lock.lock();
    }
  }
}

void CommThread::settle(const Counter& counter, uint64_t ticket) noexcept {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [&] { return counter.settled.load(std::memory_order_acquire) >= ticket; });
}

void CommThread::settle_all() noexcept {
  std::unique_lock lock(shared_->mutex);
  wait_for(shared_->changed, lock, kGraceSeconds, [&] { return shared_->ended == shared_->submitted; });
}

}  // namespace ottava
