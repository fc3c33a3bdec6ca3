#include "tests/support/thread_ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "core/log.h"
#include "core/threads/parallel_for.h"

namespace ottava::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Message {
  char* data = nullptr;
  int64_t bytes = 0;
  int peer = 0, tag = 0;
  Clock::time_point due = {};  ///< of a send
  int64_t received = 0;        ///< of a receive
  std::atomic<bool> ended = false;
};

// Many ranks share few cores: one that has nothing to do leaves its core to the others.
constexpr auto kNap = std::chrono::milliseconds(10);

// What was sent to one rank and not received yet: in order, by sender and tag.
struct Mailbox {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::deque<Message*>> sent;
  std::condition_variable changed;
  bool has_news = false;

  void tell() {
    std::lock_guard lock(mutex);
    has_news = true;
    changed.notify_one();
  }
  // When the next message arrives.
  Clock::time_point wake_up_time() const {
    const Clock::time_point now = Clock::now();
    Clock::time_point time = now + kNap;
    for (const auto& [from, messages] : sent)
      if (!messages.empty() && messages.front()->due > now) time = std::min(time, messages.front()->due);
    return time;
  }
};

// The receiver copies from the sender's buffer when it asks for its messages: the latest that a port may.
class ThreadPort final : public MessagePort {
 public:
  ThreadPort(int rank, std::vector<Mailbox>& mail, const ThreadRanks& options)
      : rank_(rank), mail_(mail), options_(options) {}

  std::string_view name() const override { return "thread"; }
  int largest_tag() const override { return 0x7fffffff; }
  int64_t largest_message_bytes() const override { return options_.largest_message_bytes; }
  Ticket send(const void* data, int64_t bytes, int peer, int tag) override {
    const Clock::time_point due = arrival_of(bytes);
    auto* message = new Message{static_cast<char*>(const_cast<void*>(data)), bytes, peer, tag, due};
    {
      std::lock_guard lock(of(peer).mutex);
      of(peer).sent[{rank_, tag}].push_back(message);
    }
    of(peer).tell();
    return message;
  }
  Ticket receive(void* data, int64_t bytes, int peer, int tag) override {
    receives_.push_back(new Message{static_cast<char*>(data), bytes, peer, tag});
    return receives_.back();
  }
  void test(std::span<Ticket> tickets, std::vector<Ended>& ended) override {
    Mailbox& mine = of(rank_);
    for (const bool may_nap : {true, false}) {
      std::vector<int> senders;
      {
        std::lock_guard lock(mine.mutex);
        mine.has_news = false;
        // One time for all: a message that is due for the second of two receives is due for the first.
        const Clock::time_point now = Clock::now();
        std::erase_if(receives_, [&](Message* message) {
          const bool is_here = take(*message, now);
          if (is_here) senders.push_back(message->peer);
          return is_here;
        });
      }
      for (int sender : senders) of(sender).tell();
      for (size_t i = 0; i < tickets.size(); ++i) {
        auto* message = static_cast<Message*>(tickets[i]);
        if (!message || !message->ended) continue;
        ended.push_back({i, message->received, message->received > message->bytes});
        delete message;
        tickets[i] = nullptr;
      }
      if (!ended.empty() || !may_nap) return;
      std::unique_lock lock(mine.mutex);
      mine.changed.wait_until(lock, mine.wake_up_time(), [&] { return mine.has_news; });
    }
  }
  void abandon_send(Ticket ticket) noexcept override {
    auto* message = static_cast<Message*>(ticket);
    std::lock_guard lock(of(message->peer).mutex);
    std::erase(of(message->peer).sent[{rank_, message->tag}], message);
    delete message;
  }
  void abandon_receive(Ticket ticket) noexcept override {
    std::erase(receives_, static_cast<Message*>(ticket));
    delete static_cast<Message*>(ticket);
  }

 private:
  Clock::time_point arrival_of(int64_t bytes) {
    const auto after = [](Clock::time_point time, double seconds) {
      return time + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    };
    const Clock::time_point now = Clock::now();
    if (!options_.link) return after(now, options_.delay ? options_.delay(bytes) : 0);
    link_is_free_ = after(std::max(now, link_is_free_), options_.link->seconds(bytes));
    return after(link_is_free_, options_.link->latency_seconds);
  }
  Mailbox& of(int rank) { return mail_[static_cast<size_t>(rank)]; }
  bool take(Message& message, Clock::time_point now) {
    auto found = of(rank_).sent.find({message.peer, message.tag});
    if (found == of(rank_).sent.end()) return false;
    if (!found->second.empty()) {
      Message& sent = *found->second.front();
      if (sent.due > now) return false;
      message.received = sent.bytes;
      if (sent.bytes > 0 && sent.bytes <= message.bytes)
        std::memcpy(message.data, sent.data, static_cast<size_t>(sent.bytes));
      found->second.pop_front();
      message.ended = true;
      sent.ended = true;
    }
    if (found->second.empty()) of(rank_).sent.erase(found);
    return message.ended;
  }

  int rank_;
  std::vector<Mailbox>& mail_;
  const ThreadRanks& options_;
  std::vector<Message*> receives_;
  Clock::time_point link_is_free_ = {};  ///< used by the communication thread
};

// In place of the ledger, which serves processes: all ranks fail with one account.
struct Watch {
  std::mutex mutex;
  std::vector<std::shared_ptr<RankState>> states;

  void stop(const std::string& reason) {
    for (auto& state : states) state->fail(reason);
  }
  std::string explain(const RankState& stuck) {
    std::lock_guard lock(mutex);
    if (stuck.failed()) return stuck.failure();
    std::vector<ProgressRecord> records;
    for (const auto& state : states) records.push_back(state->progress_with_messages());
    std::string why = fmt::format("[comm] rank {} made no progress in {} for {} s: {}", stuck.rank(),
                                  call_text(stuck.progress()), stuck.timeout_seconds(), blame(records));
    stop(why);
    return why;
  }
};

}  // namespace

void run_thread_ranks(const ThreadRanks& options, const std::function<void(Communicator& world)>& body) {
  std::vector<Mailbox> mail(static_cast<size_t>(options.ranks));
  Watch watch;
  for (int r = 0; r < options.ranks; ++r) {
    auto state = watch.states.emplace_back(std::make_shared<RankState>(r, options.ranks));
    state->set_timeout_seconds(options.timeout_seconds);
    state->set_explanation([&watch, state = state.get()] { return watch.explain(*state); });
    state->on_failure([&watch](const std::string& reason) { watch.stop(reason); });
  }
  std::mutex mutex;
  std::exception_ptr first;
  auto run_rank = [&](int r) {
    log::set_rank({r, options.ranks, r != 0});
    set_parallel_threads(options.threads_per_rank);
    auto world = make_message_world(std::make_shared<ThreadPort>(r, mail, options),
                                    watch.states[static_cast<size_t>(r)], options.workspace_bytes);
    try {
      body(*world);
    } catch (const std::exception& error) {
      {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      world->abort(error.what());
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < options.ranks; ++r) threads.emplace_back(run_rank, r);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace ottava::test
