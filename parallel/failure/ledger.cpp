#include "parallel/failure/ledger.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include "core/error.h"
#include "core/log.h"
#include "core/text/listed.h"
#include "core/threads/start_thread.h"
#include "parallel/calls/waited_time.h"
#include "parallel/failure/end_watch.h"
#include "parallel/failure/ledger_server.h"

namespace ottava {

using Kind = LedgerMessage::Kind;

namespace {
// After rank 0's server is gone, how long rank 1's verdict may take beyond the roll call.
constexpr double kSecondServerSeconds = 2;
}  // namespace

struct Ledger::Client {
  std::shared_ptr<RankState> state;
  Options options;
  std::array<tcp::Connection, 2> servers;  ///< in rank 0 and in rank 1
  std::array<bool, 2> reachable = {};
  std::mutex mutex;  ///< of everything below, and of sending
  std::condition_variable changed;
  std::string verdict;
  bool leaving = false;
  Descriptor wake;
  int64_t reported_sequence = -1, reported_step = -1;
  ProgressRecord::State reported_state = ProgressRecord::State::idle;

  LedgerMessage message(Kind kind, std::string text = "") const {
    const bool is_asked = kind == Kind::present || kind == Kind::question;
    LedgerMessage m{kind, is_asked ? state->progress_with_messages() : state->progress(), std::move(text)};
    constexpr double kSlowSeconds = 1;  // a terminal that was halted, a launcher that was stopped
    if (is_asked && log::seconds_waiting() > kSlowSeconds)
      add_item(m.record.call.work, "its log is not read");
    return m;
  }
  // With the lock held. A connection on which that fails is found closed by loop().
  void send(size_t server, const LedgerMessage& m) {
    if (reachable[server]) servers[server].send(m.encode());
  }

  // Sends to both servers, changed or not: the first report, and the answer to a roll call.
  enum class To { first_server_if_changed, both_servers };
  void report(Kind kind, To to) {
    const bool always = to == To::both_servers;
    LedgerMessage m = message(kind);
    const ProgressRecord& r = m.record;
    std::lock_guard lock(mutex);
    if (!always && r.call.sequence == reported_sequence && r.state == reported_state &&
        r.step == reported_step) {
      return;
    }
    reported_sequence = r.call.sequence;
    reported_state = r.state;
    reported_step = r.step;
    send(0, m);
    if (always || r.rank == 0) send(1, m);
  }

  void stop(const std::string& why) {
    {
      std::lock_guard lock(mutex);
      if (!verdict.empty() || leaving) return;
      verdict = why;
      changed.notify_all();
    }
    state->fail(why);
  }

  // Called on the thread that finds the failure: the process may end right after.
  void announce(const std::string& reason) {
    LedgerMessage m = message(Kind::failed, reason);
    std::lock_guard lock(mutex);
    if (!verdict.empty()) return;  // the servers know
    verdict = reason;
    changed.notify_all();
    for (size_t s = 0; s < servers.size(); ++s) send(s, m);
  }

  // Called by a thread whose call makes no progress.
  std::string ask() {
    const std::string text = fmt::format("rank {} made no progress in {} for {} s", state->rank(),
                                         call_text(state->progress()), state->timeout_seconds());
    LedgerMessage question = message(Kind::question, text);
    std::unique_lock lock(mutex);
    for (size_t s = 0; s < servers.size(); ++s) {
      if (!reachable[s]) continue;
      send(s, question);
      const double limit = options.answer_seconds + kSecondServerSeconds;
      if (!wait_for(changed, lock, limit, [&] { return !verdict.empty(); })) continue;
      std::string why = verdict;
      lock.unlock();
      state->fail(why);  // before the asker adds words of its own: all ranks give the same account
      return why;
    }
    return "the ledgers in rank 0 and rank 1 do not answer";
  }

  void on_message(const LedgerMessage& m, size_t server) {
    if (m.kind == Kind::roll_call) return report(Kind::present, To::both_servers);
    if (m.kind == Kind::stop) return stop(m.text);
    if (m.kind == Kind::farewell) {
      std::lock_guard lock(mutex);
      reachable[server] = false;
    }
  }

  void loop() {
    log::set_rank({state->rank(), state->world_size(), true});
    auto period = std::chrono::milliseconds(std::max(20, state->world_size() / 4));
    std::optional<WaitedTime> orphaned;
    while (true) {
      std::array<pollfd, 3> watched{{{wake, POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}}};
      {
        std::lock_guard lock(mutex);
        if (leaving) return;
        for (size_t s = 0; s < servers.size(); ++s) {
          if (reachable[s]) watched[s + 1].fd = servers[s].descriptor();
        }
      }
      if (::poll(watched.data(), watched.size(), static_cast<int>(period.count())) < 0 && errno != EINTR)
        std::this_thread::sleep_for(period);
      for (size_t s = 0; s < servers.size(); ++s) {
        if (watched[s + 1].fd < 0) continue;
        // Messages that came with the answer to the greeting have been read already.
        const bool open = watched[s + 1].revents == 0 || servers[s].read_available();
        while (auto bytes = servers[s].next()) {
          if (auto m = LedgerMessage::decode(*bytes)) on_message(*m, s);
        }
        std::lock_guard lock(mutex);
        if (!open && reachable[s]) {
          reachable[s] = false;
          if (s == 0) orphaned.emplace();
        }
      }
      report(Kind::report, To::first_server_if_changed);
      if (orphaned && orphaned->seconds() > options.answer_seconds + kSecondServerSeconds) {
        stop("[comm] rank 0 is gone, and no other rank has kept its last report");
      }
    }
  }
};

Ledger::Ledger(std::shared_ptr<RankState> state, Bootstrap& bootstrap, Options options)
    : client_(std::make_shared<Client>()) {
  int rank = bootstrap.rank(), size = bootstrap.size();
  client_->state = state;
  client_->options = options;
  client_->wake = Descriptor(::eventfd(0, EFD_CLOEXEC));
  const uint64_t token = job_token(bootstrap);
  if (rank < 2) {
    const tcp::OpenFiles files = tcp::allow_open_files(size);  // over MPI nothing else asks for them
    if (files.allowed < files.needed) {
      log::warning(
          "{} ranks need {} open files, but this machine allows {}: once they are used up, ranks cannot "
          "report "
          "to this one, and the job ends; raise ulimit -n",
          size, files.needed, files.allowed);
    }
    LedgerServer::Options server{.rank = rank,
                                 .world_size = size,
                                 .watches = rank == 0 ? -1 : 0,
                                 .answer_seconds = options.answer_seconds,
                                 .token = token,
                                 .long_wait_seconds = options.long_wait_seconds};
    if (rank == 0) {
      server.on_long_wait = [state, view = log::rank_view()](const std::string& text) {
        log::set_rank(view);
        log::info("{}. The time limit is {} s", text, state->timeout_seconds());
      };
    }
    server_ = std::make_unique<LedgerServer>(std::move(server));
  }
  std::vector<std::string> endpoints = bootstrap.all_gather(server_ ? server_->endpoint() : "");
  for (size_t s = 0; s < std::min<size_t>(endpoints.size(), 2); ++s) {
    client_->servers[s] = LedgerServer::connect(
        {.endpoint = endpoints[s], .token = token, .rank = static_cast<int>(s)}, options.connect_seconds);
    client_->reachable[s] = true;
  }
  client_->report(Kind::report, Client::To::both_servers);
  state->on_failure([weak = std::weak_ptr(client_)](const std::string& reason) {
    if (auto client = weak.lock()) client->announce(reason);
  });
  state->set_explanation([weak = std::weak_ptr(client_)] {
    auto client = weak.lock();
    return client ? client->ask() : std::string("the ledger of this rank has ended");
  });
  if (options.last_seconds > 0) end_watch_ = std::make_unique<EndWatch>(state, options.last_seconds);
  thread_ =
      start_thread("ledger", "tells other ranks where this one is", [client = client_] { client->loop(); });
}

void Ledger::watch_to_the_end() { static_cast<void>(end_watch_.release()); }

Ledger::~Ledger() {
  LedgerMessage farewell = client_->message(Kind::farewell);
  {
    std::lock_guard lock(client_->mutex);
    client_->leaving = true;
    if (!client_->state->failed()) {
      for (size_t s = 0; s < 2; ++s) client_->send(s, farewell);
    }
    uint64_t one = 1;
    if (::write(client_->wake, &one, sizeof one) < 0) {  // the thread also wakes by itself within its period
    }
  }
  thread_.join();  // which may be in a hook of RankState: end_watch_ lives longer
}

}  // namespace ottava
