#include "parallel/comm/thread/thread_communicator.h"

#include <exception>
#include <numeric>
#include <thread>

#include "core/log.h"
#include "core/parallel_for.h"
#include "parallel/comm/thread/rendezvous.h"

namespace ottava {

void run_thread_ranks(const ThreadRanks& options, const std::function<void(Communicator& world)>& body) {
  int n = options.ranks;
  if (n < 1) fail<ConfigError>("thread_ranks", "{} ranks were asked for, expected at least 1", n);
  auto shared = std::make_shared<threads::World>(n);
  for (int r = 0; r < n; ++r) {
    auto state = std::make_shared<RankState>(r, n);
    state->set_timeout_seconds(options.timeout_seconds);
    state->set_explanation([weak = std::weak_ptr(shared)] {
      auto world = weak.lock();
      return world ? world->explain() : std::string("the ranks have ended");
    });
    state->on_failure([weak = std::weak_ptr(shared)](const std::string& reason) {
      if (auto world = weak.lock()) world->abort(reason);
    });
    shared->states[static_cast<size_t>(r)] = state;
  }
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::mutex first_mutex;
  std::exception_ptr first;
  auto run_rank = [&](int r) {
    log::set_rank({r, n, r != 0});
    set_parallel_threads(options.threads_per_rank);
    auto state = shared->states[static_cast<size_t>(r)];
    std::shared_ptr<HostTransport> transport = threads::make_transport(shared, state, "world", ranks, r, 0);
    if (options.wrap) transport = options.wrap(std::move(transport));
    auto world = make_host_world(std::move(transport), state);
    try {
      body(*world);
    } catch (const std::exception& error) {
      {
        std::lock_guard lock(first_mutex);
        if (!first) first = std::current_exception();
      }
      world->abort(error.what());
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) threads.emplace_back(run_rank, r);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace ottava
