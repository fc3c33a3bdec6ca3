#include "parallel/failure/ledger_server.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/threads/start_thread.h"

namespace ottava {

using Kind = LedgerMessage::Kind;
using State = ProgressRecord::State;

namespace {
// How often it is seen, in a roll call, how long that has lasted.
constexpr auto kRollCallPeriod = std::chrono::milliseconds(50);

// How often it is seen how long those are there that have not greeted.
constexpr auto kVisitorPeriod = std::chrono::milliseconds(500);
// How long a server has to answer a greeting before another address is tried.
constexpr double kAnswerSeconds = 5;
}  // namespace

LedgerServer::LedgerServer(Options options)
    : options_(std::move(options)),
      records_(options_.world_size),
      parted_(records_.size()),
      long_waits_(options_.long_wait_seconds) {
  for (size_t r = 0; r < records_.size(); ++r) records_[r].rank = static_cast<int>(r);
  if (::pipe(wake_) != 0) fail<CommError>("ledger", "cannot make a pipe: {}", std::strerror(errno));
  thread_ = start_thread("ledger", "keeps where each rank is", [this] { loop(); });
}

LedgerServer::~LedgerServer() {
  if (::write(wake_[1], "", 1) < 0) {  // the pipe is empty: one byte always fits
  }
  thread_.join();
  ::close(wake_[0]);
  ::close(wake_[1]);
}

tcp::Connection LedgerServer::connect(const Address& address, double timeout_seconds) {
  const auto is_right = [&](tcp::Connection& connection) {
    return connection.send(greeting(address.token, address.rank)) &&
           connection.read(kAnswerSeconds, tcp::kGreetingBytes) == answer(address.token, address.rank);
  };
  return tcp::connect_to(address.endpoint, timeout_seconds, {.is_right = is_right});
}

size_t LedgerServer::visitors() const { return std::ranges::count(clients_, false, &Client::is_of_job); }

void LedgerServer::close_silent_visitors() {
  std::erase_if(clients_, [&](Client& client) {
    return !client.is_of_job && client.time.seconds() >= options_.greeting_seconds;
  });
}

void LedgerServer::loop() {
  while (true) {
    const Clock::time_point now = Clock::now();
    const size_t strangers = visitors();
    const bool listens = now >= listens_again_ && strangers < tcp::kMostVisitors;
    std::vector<pollfd> watched = {{wake_[0], POLLIN, 0}, {listens ? listener_.descriptor() : -1, POLLIN, 0}};
    for (const Client& client : clients_) watched.push_back({client.connection.descriptor(), POLLIN, 0});
    std::optional<Clock::time_point> until;
    const auto wakes_at = [&](Clock::time_point time) { until = std::min(time, until.value_or(time)); };
    if (now < listens_again_) wakes_at(listens_again_);
    if (strangers > 0) wakes_at(now + kVisitorPeriod);
    if (roll_call_) wakes_at(now + kRollCallPeriod);
    if (options_.on_long_wait) wakes_at(looks_again_);
    if (!wait(watched, until)) continue;
    size_t i = 2;
    for (auto client = clients_.begin(); client != clients_.end(); ++i) {
      bool open = watched[i].revents == 0 || read(*client);
      if (!open) disconnected(*client);
      client = open ? std::next(client) : clients_.erase(client);
    }
    close_silent_visitors();
    if (watched[1].revents) {
      while (visitors() < tcp::kMostVisitors && is_visited() && accept()) {
      }
    }
    if (roll_call_) finish_roll_call();
    if (options_.on_long_wait && Clock::now() >= looks_again_) look_for_long_waits();
    if (watched[0].revents) {
      drain();
      broadcast({.kind = Kind::farewell});
      return;
    }
  }
}

// Where poll() itself fails, since memory is short or fewer files may be open than are, every client is read
// ten times a second.
bool LedgerServer::wait(std::vector<pollfd>& watched, std::optional<Clock::time_point> until) {
  int limit_ms = -1;
  if (until) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*until - Clock::now()).count();
    limit_ms = static_cast<int>(std::max<int64_t>(left + 1, 0));
  }
  if (::poll(watched.data(), watched.size(), limit_ms) >= 0) return true;
  if (errno == EINTR) return false;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (pollfd& client : std::span(watched).subspan(2)) client.revents = POLLIN;
  ::poll(watched.data(), 1, 0);  // whether this thread is to end
  return true;
}

bool LedgerServer::is_visited() const {
  pollfd waiting{listener_.descriptor(), POLLIN, 0};
  return ::poll(&waiting, 1, 0) > 0;
}

// Where no descriptor is left, what waits would be seen at once again.
bool LedgerServer::accept() {
  tcp::Connection connection = listener_.accept();
  if (!connection.is_open()) {
    listens_again_ = Clock::now() + std::chrono::seconds(1);
    return false;
  }
  clients_.push_back({std::move(connection)});
  return true;
}

// While the client waited, the others may have been asked, or stopped.
bool LedgerServer::greets(Client& client, const std::string& first) {
  if (!first.starts_with(fmt::format("ottava ledger {:016x} ", options_.token))) return false;
  client.connection.send(answer(options_.token, options_.rank));
  if (first != greeting(options_.token, options_.rank)) return false;
  client.is_of_job = true;
  const auto tell = [&](Kind kind, const std::string& text) {
    client.connection.send(LedgerMessage{.kind = kind, .text = text}.encode());
  };
  if (roll_call_) tell(Kind::roll_call, "");
  if (verdict_) tell(Kind::stop, *verdict_);
  return true;
}

// Reads what was said before this server ends, also by ranks that still wait to be accepted.
void LedgerServer::drain() {
  while (is_visited()) {
    if (!accept()) break;  // no descriptor is left: it would wait for ever
  }
  for (Client& client : clients_) read(client);
}

bool LedgerServer::read(Client& client) {
  const auto longest = [&] { return client.is_of_job ? tcp::kLongestMessage : tcp::kGreetingBytes; };
  bool open = client.connection.read_available(longest());
  while (auto bytes = client.connection.next(longest())) {
    if (!client.is_of_job) {
      if (!greets(client, *bytes)) return false;
      open = client.connection.read_available();
      continue;
    }
    auto message = LedgerMessage::decode(*bytes);
    if (!message || message->record.rank >= options_.world_size) return false;
    on_message(client, *message);
  }
  return open && client.connection.is_open();
}

void LedgerServer::disconnected(Client& client) {
  if (client.rank < 0 || parted_[client.rank]) return;
  parted_[client.rank] = true;
  ProgressRecord& record = records_[client.rank];
  if (record.state != State::failed) record.state = State::closed;
  bool counts = options_.watches < 0 || options_.watches == client.rank;
  if (counts && !verdict_) call_roll("");
}

void LedgerServer::on_message(Client& client, const LedgerMessage& message) {
  client.rank = message.record.rank;
  ProgressRecord& record = records_[client.rank];
  switch (message.kind) {
    case Kind::report:
      record = message.record;
      return;
    case Kind::present:
      record = message.record;
      client.answered = true;
      return;
    case Kind::farewell:
      parted_[client.rank] = true;
      return;
    case Kind::failed:
      record = message.record;
      record.state = State::failed;
      return stop_all(message.text);
    case Kind::question:
      record = message.record;
      if (verdict_) return;
      return call_roll(message.text);
    default:
      return;
  }
}

// Where is each rank? `reason` starts the verdict. A question that comes while a roll call is under way is
// answered with it.
void LedgerServer::call_roll(std::string reason) {
  if (roll_call_) return;
  roll_call_ = std::move(reason);
  roll_call_time_.restart();
  for (Client& client : clients_) client.answered = false;
  broadcast({.kind = Kind::roll_call});
}

// Counts ranks, not connections: one that has connected but said nothing yet is waited for as well.
void LedgerServer::finish_roll_call() {
  std::vector<bool> told = parted_;
  for (const Client& client : clients_) {
    if (client.answered) told[client.rank] = true;
  }
  bool complete = std::ranges::all_of(told, std::identity{});
  if (!complete && roll_call_time_.seconds() < options_.answer_seconds) return;
  for (size_t r = 0; r < told.size(); ++r) {
    if (!told[r]) records_[r].state = State::silent;
  }
  stop_all(fmt::format("[comm] {}{}{}", *roll_call_, roll_call_->empty() ? "" : ": ", blame(records_)));
}

void LedgerServer::stop_all(const std::string& verdict) {
  roll_call_.reset();
  if (verdict_) return;
  verdict_ = verdict;
  broadcast({.kind = Kind::stop, .text = verdict});
}

// Often enough that a wait is told about when it has become long.
void LedgerServer::look_for_long_waits() {
  constexpr int kLooks = 60;
  const auto period = std::chrono::duration<double>(options_.long_wait_seconds / kLooks);
  looks_again_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(period);
  if (verdict_) return;
  if (const std::string text = long_waits_.look(records_, Clock::now()); !text.empty())
    options_.on_long_wait(text);
}

// The next read finds a client that cannot be written to.
void LedgerServer::broadcast(const LedgerMessage& message) {
  std::string bytes = message.encode();
  for (Client& client : clients_)
    if (client.is_of_job) client.connection.send(bytes);
}

}  // namespace ottava
