#include "parallel/comm/nccl/nccl_rank.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/cuda/runtime.h"
#include "core/threads/start_thread.h"
#include "parallel/comm/lane.h"

namespace ottava::nccl {
namespace {
constexpr auto kPeriod = std::chrono::milliseconds(20);
constexpr double kMomentSeconds = 0.5;
// NCCL's thread takes tens of microseconds for a call, and Linux makes the shortest sleep 50 us longer.
constexpr double kAwakeSeconds = 200e-6;
// A call of NCCL's that takes longer hangs, and nothing but an abort ends it.
constexpr auto kLongestCall = std::chrono::seconds(10);
// In which the ledger notices that a rank is gone.
constexpr double kAccountSeconds = 5;

// Where a rank that ends takes its connections with it, NCCL says ncclRemoteError, but also one of the
// others, as when the proxy of another rank fails (NVIDIA/nccl#795, pytorch/pytorch#73897).
bool may_be_of_another_rank(ncclResult_t result) {
  return result == ncclRemoteError || result == ncclSystemError || result == ncclInternalError;
}
}  // namespace

void give_up(std::shared_ptr<Handle> handle) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<Handle>>;
  std::lock_guard lock(mutex);
  kept.push_back(std::move(handle));
}

void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const std::string text =
      fmt::format("{} failed: {} ({})", call, ncclGetErrorString(result), ncclGetLastError(nullptr));
  if (may_be_of_another_rank(result)) throw LostPeer("nccl", text);
  throw CommError("nccl", text);
}

NcclRank::NcclRank(std::shared_ptr<RankState> state, int gpu)
    : state_(std::move(state)), gpu_(gpu), scratch_(cuda::allocate(gpu, 4)) {
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    // A collective holds up other ranks: it begins before what this one has still to compute.
    lanes_.push_back({.stream = Stream::cuda(gpu, StreamPriority::highest)});
  }
  cuda::fill_zero(scratch_, 4, stream(0).native());
  stream(0).synchronize();
  thread_ = start_thread("nccl", "watches collectives", [this] { loop(); });
}

NcclRank::~NcclRank() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
  cuda::release(gpu_, scratch_);
}

std::unique_lock<std::mutex> NcclRank::use(Handle& handle) const {
  std::unique_lock use(handle.use);
  if (handle.aborted) throw CommError(state_->failure());
  return use;
}

void NcclRank::settle(const std::shared_ptr<Handle>& handle, const char* call, const EnteredCall* waiting) {
  const auto begin = Clock::now();
  const double limit = state_->timeout_seconds();
  WaitedTime time(begin);
  std::optional<int64_t> entered;
  while (true) {
    ncclResult_t result = ncclSuccess;
    {
      const auto used = use(*handle);
      check(ncclCommGetAsyncError(handle->comm, &result), "ncclCommGetAsyncError");
    }
    if (may_be_of_another_rank(result)) hear_who_is_gone();
    check(result, call);
    if (result == ncclSuccess) {
      if (entered) state_->withdraw(*entered);
      return;
    }
    if (state_->failed()) throw CommError(state_->failure());
    const double waited = time.seconds();
    if (waiting && !entered && (waited > kMomentSeconds || waited > limit))
      entered = state_->enter(*waiting, begin);
    if (waited > limit) {
      state_->fail(state_->timeout_message());
      throw CommError(state_->failure());
    }
    if (waited < kAwakeSeconds) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

void NcclRank::hear_who_is_gone() const {
  if (state_->world_size() == 1) return;
  for (WaitedTime time; !state_->failed() && time.seconds() < kAccountSeconds;)
    std::this_thread::sleep_for(kPeriod);
  if (state_->failed()) throw CommError(state_->failure());
}

void NcclRank::watch(const std::shared_ptr<Handle>& handle) {
  std::lock_guard lock(mutex_);
  handles_.push_back(handle);
}

void NcclRank::release(const std::shared_ptr<Handle>& handle) noexcept {
  {
    std::lock_guard lock(mutex_);
    std::erase(handles_, handle);
  }
  std::unique_lock used(handle->use);
  if (handle->aborted) return;
  try {
    if (!state_->failed()) {
      check(ncclCommFinalize(handle->comm), "ncclCommFinalize");
      used.unlock();
      settle(handle, "ncclCommFinalize");
      used.lock();
      ncclCommDestroy(handle->comm);
      return;
    }
  } catch (const std::exception& error) {
    state_->fail(error.what());
  }
  handle->aborted = true;
  ncclCommAbort(handle->comm);
}

void NcclRank::issued(size_t index, Issued work) {
  std::lock_guard lock(mutex_);
  Lane& lane = lanes_[index];
  if (lane.queue.empty()) lane.idle.restart();
  lane.queue.push_back(std::move(work));
  changed_.notify_all();
}

// With the lock held: removes what the GPU has finished from the queue; what it is working on is the rank's
// progress.
void NcclRank::advance(Lane& lane) {
  while (!lane.queue.empty()) {
    Issued& front = lane.queue.front();
    if (!lane.front_entered) {
      lane.front_entered = state_->enter(front.call);
      state_->calls().began(front.record);
    }
    cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(front.done->native()));
    if (status == cudaErrorNotReady) return;
    if (status != cudaSuccess) {
      fail<CommError>("nccl", "{} '{}' (axis {}) failed on GPU {}: {}", name_of(front.call.collective),
                      front.call.label, front.call.axis, gpu_, cudaGetErrorString(status));
    }
    state_->leave(*lane.front_entered);
    if (front.clock) state_->calls().began(front.record, front.clock->nanoseconds_of(*front.begun));
    state_->calls().ended(front.record, front.clock ? front.clock->nanoseconds_of(*front.done) : 0);
    lane.queue.pop_front();
    lane.front_entered.reset();
    lane.idle.restart();
  }
}

// If one lane waits for ranks that are held up in another lane, that other lane is late as well.
bool NcclRank::is_late() {
  const double limit = state_->timeout_seconds();
  return std::ranges::any_of(lanes_,
                             [&](Lane& lane) { return !lane.queue.empty() && lane.idle.seconds() > limit; });
}

// An abort lasts until graphs that hold calls of its handle are destroyed. The training thread does that once
// its stream returns, so all handles are aborted at once, with the mutex free meanwhile. Where no thread can
// be started, one comes after the other.
void NcclRank::abort_all() {
  std::vector<std::thread> aborts;
  std::vector<std::shared_ptr<Handle>> left;
  {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    for (Lane& lane : lanes_) lane.queue.clear();
    for (auto& handle : handles_) {
      std::unique_lock used(handle->use, std::defer_lock);
      for (const auto end = Clock::now() + kLongestCall; !used.try_lock() && Clock::now() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::exchange(handle->aborted, true)) continue;
      try {
        aborts.emplace_back([handle, gpu = gpu_] {
          cudaSetDevice(gpu);
          ncclCommAbort(handle->comm);
        });
      } catch (const std::system_error&) {
        left.push_back(handle);
      }
    }
  }
  for (const std::shared_ptr<Handle>& handle : left) ncclCommAbort(handle->comm);
  for (std::thread& abort : aborts) abort.join();
}

void NcclRank::loop() {
  cudaSetDevice(gpu_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait_for(lock, kPeriod, [&] { return stopping_; });
    if (stopping_) return;
    std::string reason;
    bool late = false, is_lost = false;
    try {
      for (Lane& lane : lanes_) advance(lane);
      for (auto& handle : handles_) {
        ncclResult_t result = ncclSuccess;
        const std::unique_lock used(handle->use, std::try_to_lock);
        if (used && !handle->aborted)
          check(ncclCommGetAsyncError(handle->comm, &result), "ncclCommGetAsyncError");
        check(result, "a collective");
      }
      late = is_late();
    } catch (const LostPeer& error) {
      reason = error.what();
      is_lost = true;
    } catch (const std::exception& error) {
      reason = error.what();
    }
    if (aborted_ || (reason.empty() && !late && !state_->failed())) continue;
    lock.unlock();
    if (late) reason = state_->timeout_message();
    try {
      if (is_lost) hear_who_is_gone();
    } catch (const CommError& account) {
      reason = account.what();
    }
    if (!reason.empty()) state_->fail(reason);
    abort_all();
    lock.lock();
  }
}

}  // namespace ottava::nccl
