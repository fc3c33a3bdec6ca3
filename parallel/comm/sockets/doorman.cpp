#include "parallel/comm/sockets/doorman.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/threads/start_thread.h"

namespace ottava {
namespace {

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail<CommError>("tcp", "cannot make a pipe: {}", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::string start_of_greeting(uint64_t token) { return fmt::format("ottava {:016x}: rank ", token); }

// The rank that greets this one, or -1.
int rank_in(std::string_view text, const Doorman::Options& o) {
  const std::string start = start_of_greeting(o.token);
  if (!text.starts_with(start)) return -1;
  int from = -1;
  std::from_chars(text.data() + start.size(), text.data() + text.size(), from);
  return from >= 0 && from < o.size && text == Doorman::greeting(o.token, from, o.rank) ? from : -1;
}

}  // namespace

std::string Doorman::greeting(uint64_t token, int from, int to) {
  return fmt::format("{}{} to {}", start_of_greeting(token), from, to);
}
std::string Doorman::answer(uint64_t token, int from, int to) {
  return fmt::format("ottava {:016x}: welcome, rank {}, to {}", token, from, to);
}

Doorman::Doorman(const Options& options) : options_(options), arrived_(options.size), end_(make_pipe()) {
  thread_ = start_thread("tcp", "receives the connections of other ranks", [this] { loop(); });
}

Doorman::~Doorman() {
  end_.second.close();
  thread_.join();
}

tcp::Connection Doorman::take(int from) {
  const std::lock_guard lock(mutex_);
  return std::exchange(arrived_[from], {});
}

void Doorman::loop() {
  constexpr int kLookMilliseconds = 250;
  while (true) {
    const bool has_room = visitors_.size() < tcp::kMostVisitors;
    std::vector<pollfd> watched = {{end_.first, POLLIN, 0},
                                   {has_room ? listener_.descriptor() : -1, POLLIN, 0}};
    for (const Visitor& visitor : visitors_) watched.push_back({visitor.connection.descriptor(), POLLIN, 0});
    if (::poll(watched.data(), watched.size(), visitors_.empty() ? -1 : kLookMilliseconds) < 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (watched[0].revents != 0) return;
    std::erase_if(visitors_, [&](Visitor& visitor) { return receive(visitor); });
    if (watched[1].revents == 0) continue;
    if (tcp::Connection connection = listener_.accept(); connection.is_open()) {
      visitors_.push_back({std::move(connection)});
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no descriptor is left: it waits
    }
  }
}

bool Doorman::receive(Visitor& visitor) {
  tcp::Connection& connection = visitor.connection;
  const bool is_open = connection.read_available(tcp::kGreetingBytes);
  const auto text = connection.next(tcp::kGreetingBytes);
  if (!text) return !is_open || !connection.is_open() || visitor.time.seconds() >= options_.greeting_seconds;
  const int from = rank_in(*text, options_);
  // One that has gone did not wait for the answer; what it came with may be later than its next connection.
  if (from < 0 || !is_open) return true;
  connection.send(answer(options_.token, from, options_.rank));
  const std::lock_guard lock(mutex_);
  arrived_[from] = std::move(connection);
  return true;
}

}  // namespace ottava
