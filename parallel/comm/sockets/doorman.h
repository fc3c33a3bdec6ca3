#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/io/descriptor.h"
#include "parallel/calls/waited_time.h"
#include "parallel/comm/tcp.h"

namespace ottava {

/// Receives the connections that other ranks make to this one, in its own thread: each hears at once whether
/// it has reached the rank that it meant, whatever that rank does meanwhile.
class Doorman {
 public:
  struct Options {
    uint64_t token = 0;  ///< of the job
    int rank = 0, size = 1;
    double greeting_seconds = 10;  ///< how long a visitor has to say which rank it is
  };
  /// Throws CommError if the system gives it no port or no pipe.
  explicit Doorman(const Options& options);
  ~Doorman();
  Doorman(const Doorman&) = delete;
  Doorman& operator=(const Doorman&) = delete;

  int port() const { return listener_.port(); }
  /// The last connection that rank `from` has made, if it has made one since the last call.
  tcp::Connection take(int from);

  /// What a connection from one rank to another begins with, and what is answered.
  static std::string greeting(uint64_t token, int from, int to);
  static std::string answer(uint64_t token, int from, int to);

 private:
  struct Visitor {
    tcp::Connection connection;
    WaitedTime time = WaitedTime();  ///< since it came
  };
  void loop();
  /// Whether the visitor is done with: it has its place, or is sent away.
  bool receive(Visitor& visitor);

  Options options_;
  tcp::Listener listener_;
  std::vector<Visitor> visitors_;  ///< that have not greeted yet
  std::mutex mutex_;
  std::vector<tcp::Connection> arrived_;   ///< by rank
  std::pair<Descriptor, Descriptor> end_;  ///< a pipe, closed to end the thread
  std::thread thread_;
};

}  // namespace ottava
