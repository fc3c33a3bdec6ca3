#include "parallel/failure/end_watch.h"

#include <chrono>
#include <cstdlib>
#include <future>
#include <system_error>
#include <utility>

#include "core/log.h"
#include "core/threads/start_thread.h"
#include "parallel/calls/waited_time.h"

namespace ottava {
namespace {

// The log may hang like the rest, so this waits for it no longer than a second, and says nothing where no
// thread can be started.
[[noreturn]] void end_process(const RankState& state, double seconds) {
  std::promise<void> said;
  try {
    std::thread([&] {
      log::set_rank({state.rank(), state.world_size(), true});
      log::error("this rank has not come to its end {} s after the failure, and is ended now: {}", seconds,
                 state.failure());
      said.set_value();
    }).detach();
    said.get_future().wait_for(std::chrono::seconds(1));
  } catch (const std::system_error&) {
  }
  std::_Exit(1);
}

}  // namespace

EndWatch::EndWatch(std::shared_ptr<RankState> state, double seconds)
    : state_(std::move(state)),
      seconds_(seconds),
      thread_(start_thread("ranks", "ends a rank that hangs after a failure", [this] { watch(); })) {}

EndWatch::~EndWatch() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void EndWatch::watch() {
  constexpr auto kPeriod = std::chrono::milliseconds(100);
  std::unique_lock lock(mutex_);
  const auto has_ended = [&] { return ended_; };
  while (!state_->failed()) {
    if (changed_.wait_for(lock, kPeriod, has_ended)) return;
  }
  if (!wait_for(changed_, lock, seconds_, has_ended)) end_process(*state_, seconds_);
}

}  // namespace ottava
