#include "tests/support/launched.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace ottava::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kLimitSeconds = 240;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// As much of a file below /proc as there is. Its process may end during the reading: then an iterator over
// the buffer throws, and << does not.
std::string bytes_of(const fs::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

// Calls body(pid, command line) for every process.
template <class F>
void for_each_process(F&& body) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    body(std::stoi(name), bytes_of(entry.path() / "cmdline"));
  }
}

/// The first and the last of what a program prints: a failure is told by these, and a run that should have
/// been stopped prints megabytes between.
class Output {
 public:
  void append(const char* text, size_t bytes) {
    const size_t first = std::min(bytes, kEach - head_.size());
    head_.append(text, first);
    tail_.append(text + first, bytes - first);
    if (tail_.size() <= 2 * kEach) return;
    left_out_ += tail_.size() - kEach;
    tail_.erase(0, tail_.size() - kEach);
  }
  std::string text() const {
    if (left_out_ == 0) return head_ + tail_;
    return head_ + "\n... " + std::to_string(left_out_) + " bytes are left out ...\n" + tail_;
  }

 private:
  static constexpr size_t kEach = size_t{32} << 10;
  std::string head_, tail_;
  size_t left_out_ = 0;
};

int parent_of(int process) {
  std::string stat = bytes_of("/proc/" + std::to_string(process) + "/stat");
  const size_t end =
      stat.rfind(')');  // of the name, which may hold anything; then the state, then the parent
  return end == std::string::npos ? 0 : std::atoi(stat.c_str() + std::min(end + 4, stat.size()));
}

/// Launchers start their ranks in sessions of their own, so a signal to the group is not enough.
void kill_with_descendants(int process) {
  ::kill(process, SIGSTOP);  // so that it starts no more
  for_each_process([&](int pid, const std::string&) {
    if (parent_of(pid) == process) kill_with_descendants(pid);
  });
  ::kill(process, SIGKILL);
}

/// The account without the rank that passed it on: a rank that hears of another's failure before it meets the
/// same one itself repeats that rank's sentence.
std::string without_messenger(const std::string& account) {
  const std::string messenger = "[comm] rank ", verb = " stopped: ";
  const size_t at = account.find(verb);
  return account.starts_with(messenger) && at != std::string::npos ? account.substr(at + verb.size())
                                                                   : account;
}

}  // namespace

std::map<int, std::string> Outcome::accounts() const {
  static const std::regex logged(".* - ERROR - rank ([0-9]+): (.*)"), more("\\[rank ([0-9]+)\\] ( .*)"),
      of_all("ottava launch: (both|all ([0-9]+)) ranks ended with the error above"),
      told("(?:ranks? ([0-9, ]+)|(both|all ([0-9]+)) ranks): (.*)");
  std::map<int, std::string> all;
  std::vector<int> last;  // whose account in the launcher's list began last
  bool is_in_list = false;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    const auto every = [&](int word, int number) {  // both or all of them
      return found[number].matched ? std::stoi(found[number]) : found[word].matched ? 2 : 0;
    };
    if (std::regex_match(line, found, logged)) {
      all[std::stoi(found[1])] = found[2];
    } else if (std::regex_match(line, found, more)) {
      all[std::stoi(found[1])] += found[2];
    } else if (std::regex_match(line, found, of_all)) {
      const std::string said = all.empty() ? "" : all.begin()->second;
      for (int rank = 0; rank < every(1, 2); ++rank) all[rank] = said;
    } else if (line.ends_with("their accounts:")) {
      is_in_list = true;
    } else if (is_in_list && std::regex_match(line, found, told)) {
      last.clear();
      for (int rank = 0; rank < every(2, 3); ++rank) last.push_back(rank);
      std::istringstream ranks(found[1]);
      for (std::string rank; std::getline(ranks, rank, ',');) last.push_back(std::stoi(rank));
      for (const int rank : last) all[rank] = found[4];
    } else if (is_in_list && line.starts_with(' ')) {
      for (const int rank : last) all[rank] += line;
    }
  }
  return all;
}

bool Outcome::all_say(int ranks, const std::string& text) const {
  std::map<int, std::string> all = accounts();
  const std::string said = without_messenger(all[0]);
  if (said.find(text) == std::string::npos) return false;
  for (int rank = 0; rank < ranks; ++rank)
    if (without_messenger(all[rank]) != said) return false;
  return true;
}

Outcome run_command(const std::string& command, const std::function<void(int group)>& meanwhile) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const auto begin = Clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    // Under nohup, or in a script's background, tests ignore some of these, and commands would as well.
    for (int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) ::signal(signal, SIG_DFL);
    ::dup2(ends[1], 1);
    ::dup2(ends[1], 2);
    ::execl("/bin/bash", "bash", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  ::setpgid(child, child);
  ::close(ends[1]);
  std::thread beside;
  if (meanwhile) beside = std::thread([&] { meanwhile(child); });
  Output said;
  bool timed_out = false;
  for (pollfd end{ends[0], POLLIN, 0};;) {
    const double left = kLimitSeconds - seconds_since(begin);
    if (!timed_out && ::poll(&end, 1, std::max(0, static_cast<int>(left * 1000))) == 0) {
      kill_with_descendants(child);
      timed_out = true;
    }
    char chunk[4096];
    const ssize_t n = ::read(ends[0], chunk, sizeof chunk);
    if (n <= 0) break;
    said.append(chunk, static_cast<size_t>(n));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (beside.joinable()) beside.join();
  Outcome out{.output = said.text(), .timed_out = timed_out, .seconds = seconds_since(begin)};
  out.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return out;
}

int process_of_rank(const std::string& token, int rank) {
  int found = 0;
  const std::string variable = std::string("\0RANK=", 6) + std::to_string(rank) + '\0';
  for_each_process([&](int pid, const std::string& line) {
    if (line.find(token) == std::string::npos) return;
    const std::string environment = '\0' + bytes_of(fs::path("/proc") / std::to_string(pid) / "environ");
    if (environment.find(variable) != std::string::npos) found = pid;
  });
  return found;
}

std::vector<int> processes_with(const std::string& token) {
  std::vector<int> found;
  for_each_process([&](int pid, const std::string& line) {
    if (line.find(token) != std::string::npos) found.push_back(pid);
  });
  return found;
}

bool wait_until(double seconds, const std::function<bool()>& condition) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace ottava::test
