#include "core/threads/background_work.h"

#include <chrono>
#include <memory>
#include <system_error>
#include <utility>

#include "core/log.h"

namespace ottava {

void BackgroundWork::start(std::function<void()> work) {
  wait();
  const auto shared = std::make_shared<std::function<void()>>(std::move(work));  // kept if no thread takes it
  try {
    running_ = std::async(std::launch::async, [shared, view = log::rank_view()] {
      log::set_rank(view);
      (*shared)();
    });
  } catch (const std::system_error& error) {
    if (!std::exchange(has_warned_, true))
      log::warning("training waits for {}, because no thread can be started: {}", what_,
                   error.code().message());
    (*shared)();
  }
}

bool BackgroundWork::is_busy() const {
  return running_.valid() && running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void BackgroundWork::wait() const {
  if (running_.valid()) running_.wait();
}

}  // namespace ottava
