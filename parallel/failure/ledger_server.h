#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include "parallel/calls/waited_time.h"
#include "parallel/comm/tcp.h"
#include "parallel/failure/ledger_message.h"
#include "parallel/failure/long_waits.h"

namespace ottava {

/// The side of the ledger that keeps every rank's last report and reaches the verdict. One runs in rank 0 and
/// one in rank 1, each with a thread of its own.
class LedgerServer {
 public:
  struct Options {
    int rank = 0, world_size = 1;
    int watches = -1;  ///< only this rank's disconnection counts; -1: every rank's
    double answer_seconds = 1.5;
    uint64_t token = 0;            ///< of the job: job_token()
    double greeting_seconds = 10;  ///< how long a visitor has to greet
    /// Called by the server's thread with what LongWaits says; null: nothing is called.
    std::function<void(const std::string&)> on_long_wait = {};
    double long_wait_seconds = 60;
  };
  explicit LedgerServer(Options options);
  /// Tells the ranks that this is no failure.
  ~LedgerServer();
  LedgerServer(const LedgerServer&) = delete;

  /// The first message of every connection, which asks for the server in a rank, and its answer. A visitor
  /// that begins otherwise, or not within the time, is told nothing, and one that asks for another
  /// rank only which this is: both are closed.
  static std::string greeting(uint64_t token, int rank) {
    return fmt::format("ottava ledger {:016x} {}", token, rank);
  }
  static std::string answer(uint64_t token, int rank) {
    return fmt::format("ottava ledger {:016x}, here is rank {}", token, rank);
  }
  /// A connection to that rank's server: addresses at which anything else answers are not taken. Throws
  /// CommError.
  struct Address {
    std::string endpoint;
    uint64_t token = 0;
    int rank = 0;
  };
  static tcp::Connection connect(const Address& address, double timeout_seconds);
  std::string endpoint() const { return listener_.endpoint(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Client {
    tcp::Connection connection;
    bool is_of_job = false;          ///< it has sent the greeting
    WaitedTime time = WaitedTime();  ///< since it came
    int rank = -1;
    bool answered = false;  ///< the roll call under way
  };
  void loop();
  void close_silent_visitors();
  size_t visitors() const;
  /// Until one of them has something, the first two being wake_ and the listener, or until then. False: it
  /// was interrupted.
  static bool wait(std::vector<pollfd>& watched, std::optional<Clock::time_point> until);
  /// Whether somebody waits to be accepted.
  bool is_visited() const;
  /// False where no connection could be taken.
  bool accept();
  void drain();
  bool read(Client& client);
  /// Whether it may stay.
  bool greets(Client& client, const std::string& first);
  void disconnected(Client& client);
  void on_message(Client& client, const LedgerMessage& message);
  void call_roll(std::string reason);
  void finish_roll_call();
  void stop_all(const std::string& verdict);
  void look_for_long_waits();
  void broadcast(const LedgerMessage& message);

  Options options_;
  tcp::Listener listener_;
  int wake_[2] = {-1, -1};
  std::list<Client> clients_;
  std::vector<ProgressRecord> records_;
  std::vector<bool> parted_;              ///< ranks that said farewell or whose connection is closed
  std::optional<std::string> roll_call_;  ///< why it was called
  WaitedTime roll_call_time_;
  Clock::time_point listens_again_ = {};  ///< until then no descriptor was left for another connection
  std::optional<std::string> verdict_;    ///< what all ranks were stopped with
  LongWaits long_waits_;
  Clock::time_point looks_again_ = {};  ///< for long waits
  std::thread thread_;
};

}  // namespace ottava
