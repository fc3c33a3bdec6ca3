#include "parallel/launcher/launcher.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/ranges.h>

#include "core/contains.h"
#include "core/error.h"
#include "core/io/uninterrupted.h"
#include "core/text/listed.h"
#include "parallel/calls/waited_time.h"
#include "parallel/comm/sockets/held_port.h"
#include "parallel/launcher/line_labels.h"
#include "parallel/launcher/rank_accounts.h"
#include "parallel/launcher/rank_process.h"
#include "parallel/launcher/stop_signal_set.h"

namespace ottava {
namespace {

// Variables of launchers that may have started this one; they would mislead the ranks.
constexpr std::string_view kOthers[] = {
    "OMPI_",          "PMI_",          "MPI_LOCAL",      "SLURM_STEP_",
    "SLURM_PROCID",   "SLURM_LOCALID", "SLURM_CPU_BIND", "TORCHELASTIC_USE_AGENT_STORE",
    "OTTAVA_ACCOUNTS"};

void check(const RankLaunch& launch) {
  const auto expect = [](bool holds, std::string_view what, int got, const std::string& expected) {
    if (!holds) fail<ConfigError>("launch", "{} is {}, expected {}", what, got, expected);
  };
  expect(launch.ranks >= 1, "the number of ranks", launch.ranks, "at least 1");
  expect(launch.machines >= 1, "the number of machines", launch.machines, "at least 1");
  expect(launch.machine >= 0 && launch.machine < launch.machines, "the number of this machine",
         launch.machine, fmt::format("0 to {}", launch.machines - 1));
  for (int rank : launch.only_ranks) {
    const int all = launch.ranks * launch.machines;
    expect(rank >= 0 && rank < all, "a rank whose lines are asked for", rank,
           fmt::format("0 to {}", all - 1));
  }
  if (launch.machines > 1 && launch.master.address.empty()) {
    fail<ConfigError>(
        "launch",
        "{} machines, but the address of machine 0 is unknown: give it to every launcher with --master-addr",
        launch.machines);
  }
}

// Ranks of one machine would look for each other there until comm.init_timeout_seconds are over.
void require_loopback() {
  const Descriptor probe(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return;
  fail<CommError>(
      "launch",
      "ranks cannot meet at 127.0.0.1: {}; bring this machine's loopback interface up (as root: ip "
      "link set lo up)",
      std::strerror(errno));
}

// Whether standard error and standard output have the same reader.
bool is_same_output() {
  struct stat output, errors;
  return ::fstat(1, &output) == 0 && ::fstat(2, &errors) == 0 && output.st_dev == errors.st_dev &&
         output.st_ino == errors.st_ino;
}

/// What is left of a time, from which the time for which this process was stopped is not taken.
class Countdown {
 public:
  static constexpr double kLook = 0.5;  ///< seconds after which to look again

  explicit Countdown(double seconds) : seconds_(seconds) {}
  double left() { return std::max(seconds_ - waited_.seconds(), 0.0); }
  bool is_over() { return left() == 0; }

 private:
  double seconds_;
  WaitedTime waited_;
};

class LocalRanks {
 public:
  explicit LocalRanks(const RankLaunch& launch);
  ~LocalRanks() { kill_ranks(); }
  int run();

 private:
  struct Rank {
    int number = 0;
    RankProcess process;
    Descriptor file;
    std::array<LineLabels, 2> lines;
    bool is_shown = true;
    std::string told;    ///< of an account that is not whole yet
    std::string ending;  ///< how it ended, if with an error
    bool has_ended = false;
  };
  std::vector<std::string> environment(int local) const;
  std::string log_of(int rank) const { return fmt::format("{}/rank-{}.log", launch_.tee_folder, rank); }
  void start(int local);
  void wait();
  void watch_ranks(std::vector<pollfd>& watched) const;
  void read_ranks(std::span<const pollfd> polled);
  int milliseconds_to_wait();
  bool forward(const Rank& rank, LineLabels& lines);
  void tell_of_lost_lines();
  void read_account(Rank& rank);
  void take_signals();
  void take_stop(int signal);
  void say_who_is_left();
  void reap();
  void kill_ranks();
  std::string last_words();
  void watch_reader();
  bool has_ended() const { return std::ranges::all_of(ranks_, &Rank::has_ended); }

  const RankLaunch& launch_;
  std::optional<HeldPort> port_;
  Master master_;
  Descriptor signals_;
  std::vector<Rank> ranks_;
  LineOutlet outlet_;
  RankAccounts accounts_;
  int code_ = 0, interrupts_ = 0;
  bool is_read_with_lines_ = is_same_output();  ///< accounts, on standard error or where both are one
  bool is_to_end_ = false, told_of_lost_copies_ = false, told_of_lost_lines_ = false,
       said_who_is_left_ = false;
  std::optional<Countdown> grace_, notice_, reader_;
  LineOutlet::Clock::time_point reader_read_at_;
};

LocalRanks::LocalRanks(const RankLaunch& launch) : launch_(launch), master_(launch.master) {
  if (master_.address.empty()) {
    master_.address = "127.0.0.1";
    if (launch_.ranks > 1) require_loopback();
  }
  if (master_.port == 0) master_.port = port_.emplace().number();
  if (!launch_.tee_folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(launch_.tee_folder, error);
    if (error) fail<FileError>("launch", "cannot make {}: {}", launch_.tee_folder, error.message());
  }
  // What started the launcher may have ignored it; then nothing would tell that a rank has ended.
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t set = stop_signal_set();
  sigaddset(&set, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  for (int local = 0; local < launch_.ranks; ++local) start(local);
}

std::vector<std::string> LocalRanks::environment(int local) const {
  std::vector<std::string> variables = {fmt::format("RANK={}", launch_.machine * launch_.ranks + local),
                                        fmt::format("WORLD_SIZE={}", launch_.machines * launch_.ranks),
                                        fmt::format("LOCAL_RANK={}", local),
                                        fmt::format("LOCAL_WORLD_SIZE={}", launch_.ranks),
                                        fmt::format("MASTER_ADDR={}", master_.address),
                                        fmt::format("MASTER_PORT={}", master_.port)};
  if (!launch_.only_ranks.empty())
    variables.push_back(fmt::format("LOG_RANK={}", fmt::join(launch_.only_ranks, ",")));
  const auto own = variables;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable, name = text.substr(0, text.find('='));
    const auto is_own = [&](const std::string& v) { return v.substr(0, v.find('=')) == name; };
    const auto is_other = [&](std::string_view start) { return name.starts_with(start); };
    if (std::ranges::none_of(own, is_own) && std::ranges::none_of(kOthers, is_other))
      variables.emplace_back(text);
  }
  return variables;
}

void LocalRanks::start(int local) {
  const int number = launch_.machine * launch_.ranks + local;
  const auto& only = launch_.only_ranks;
  const bool is_shown = only.empty() || contains(only, number);
  const std::string label = only.size() == 1 ? "" : fmt::format("[rank {}] ", number);
  Descriptor file;
  if (!launch_.tee_folder.empty()) {
    const std::string name = log_of(number);
    // What the job wrote before it was started again says why that was needed.
    file = Descriptor(::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!file.is_open()) fail<FileError>("launch", "cannot write {}: {}", name, std::strerror(errno));
  }
  RankProcess process = start_rank(launch_.program, launch_.arguments, environment(local));
  LineLabels output(std::move(process.output), {is_shown ? 1 : -1, label, file}),
      errors(std::move(process.errors), {is_shown ? 2 : -1, label, file});
  ranks_.push_back(
      {number, std::move(process), std::move(file), {std::move(output), std::move(errors)}, is_shown});
}

int LocalRanks::run() {
  while (!has_ended()) wait();
  for (Rank& rank : ranks_) {
    for (LineLabels& lines : rank.lines) {
      while (forward(rank, lines)) wait();
    }
    read_account(rank);
  }
  if (code_ != 0) outlet_.put(2, last_words());
  tell_of_lost_lines();
  while (!outlet_.is_empty()) wait();
  return code_;
}

// Waits until a rank says or does something, a signal arrives, or the time is up. Lines that nobody has read
// yet come first; ranks that say more wait meanwhile.
void LocalRanks::wait() {
  std::vector<pollfd> watched = {{signals_, POLLIN, 0}};
  const bool reads = outlet_.is_empty();
  if (reads)
    watch_ranks(watched);
  else
    watched.push_back(outlet_.watched());
  watch_reader();
  ::poll(watched.data(), watched.size(), milliseconds_to_wait());
  outlet_.write_some();
  tell_of_lost_lines();
  if (reads) read_ranks(std::span(watched).subspan(1));
  if (watched[0].revents != 0) take_signals();
  watch_reader();
  if (reader_ && reader_->is_over()) outlet_.give_up();
  if (notice_ && notice_->is_over()) say_who_is_left();
  if (grace_ && grace_->is_over()) kill_ranks();
}

void LocalRanks::watch_ranks(std::vector<pollfd>& watched) const {
  for (const Rank& rank : ranks_) {
    for (const LineLabels& lines : rank.lines) watched.push_back({lines.descriptor(), POLLIN, 0});
    watched.push_back({rank.process.account, POLLIN, 0});
  }
}

// `polled`: what watch_ranks() added.
void LocalRanks::read_ranks(std::span<const pollfd> polled) {
  size_t at = 0;
  for (Rank& rank : ranks_) {
    for (LineLabels& lines : rank.lines) {
      if (polled[at++].revents != 0) forward(rank, lines);
    }
    if (polled[at++].revents == 0) continue;
    for (LineLabels& lines : rank.lines) forward(rank, lines);  // what it said before
    if (outlet_.is_empty()) read_account(rank);
  }
}

// -1 where no time limit runs.
int LocalRanks::milliseconds_to_wait() {
  if (!grace_ && !notice_ && !reader_) return -1;
  double left = Countdown::kLook;
  for (std::optional<Countdown>* countdown : {&grace_, &notice_, &reader_})
    if (*countdown) left = std::min(left, (*countdown)->left());
  return static_cast<int>(std::ceil(left * 1e3));
}

// A full disk fails each write of each rank: one line says it for all.
bool LocalRanks::forward(const Rank& rank, LineLabels& lines) {
  const bool may_be_more = lines.forward(outlet_);
  if (lines.copy_error() != 0 && !told_of_lost_copies_) {
    told_of_lost_copies_ = true;
    outlet_.put(2, fmt::format("ottava launch: WARNING: {} cannot be written ({}): what does not fit is "
                               "missing there\n",
                               log_of(rank.number), std::strerror(lines.copy_error())));
  }
  return may_be_more;
}

void LocalRanks::tell_of_lost_lines() {
  if (outlet_.write_error() == 0 || std::exchange(told_of_lost_lines_, true)) return;
  outlet_.put(2, fmt::format("ottava launch: WARNING: lines of ranks cannot be written ({}): what does not "
                             "fit is missing\n",
                             std::strerror(outlet_.write_error())));
}

void LocalRanks::read_account(Rank& rank) {
  char text[4096];
  ssize_t got = 0;
  while ((got = uninterrupted([&] { return ::read(rank.process.account, text, sizeof text); })) > 0)
    rank.told.append(text, got);
  if (got == 0) rank.process.account.close();
  while (const std::optional<RankAccount> account = take_account(rank.told)) {
    using enum RankAccounts::Shown;
    const bool is_new = accounts_.add(rank.number, account->text, rank.is_shown ? yes : no);
    const bool is_error = account->printed == Printed::to_stderr;
    rank.lines[is_error].add(account->line, is_new ? LineLabels::For::all : LineLabels::For::copy, outlet_);
    is_read_with_lines_ |= is_new && is_error;
  }
}

// Of lines that keep ranks from ending; it has all the time again whenever it reads.
void LocalRanks::watch_reader() {
  if (!is_to_end_ || outlet_.is_empty()) return reader_.reset();
  if (reader_ && reader_read_at_ == outlet_.waits_since()) return;
  reader_read_at_ = outlet_.waits_since();
  reader_.emplace(launch_.reader_seconds);
}

void LocalRanks::take_signals() {
  signalfd_siginfo info;
  while (::read(signals_, &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      reap();
      continue;
    }
    take_stop(signal);
  }
}

void LocalRanks::take_stop(int signal) {
  is_to_end_ = true;
  if ((signal == SIGINT && ++interrupts_ > 1) || (signal == SIGTERM && said_who_is_left_)) {
    code_ = code_ ? code_ : 128 + signal;
    return kill_ranks();
  }
  if (signal == SIGTERM && !notice_) notice_.emplace(launch_.notice_seconds);
  for (const Rank& rank : ranks_) {
    if (!rank.has_ended) ::kill(rank.process.id, signal);
  }
}

void LocalRanks::say_who_is_left() {
  notice_.reset();
  said_who_is_left_ = true;
  std::vector<int> left;
  for (const Rank& rank : ranks_)
    if (!rank.has_ended) left.push_back(rank.number);
  if (left.empty()) return;
  constexpr size_t kNamed = 16;
  outlet_.put(2, fmt::format("ottava launch: {:.3g} s after SIGTERM these ranks have not ended, and may be "
                             "saving: {}; another SIGTERM kills them\n",
                             launch_.notice_seconds,
                             listed(
                                 left, [](int rank) { return std::to_string(rank); }, kNamed)));
}

// One signal may stand for several children that ended.
void LocalRanks::reap() {
  int status = 0;
  for (pid_t id; (id = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto rank = std::ranges::find(ranks_, id, [](const Rank& r) { return r.process.id; });
    if (rank == ranks_.end()) continue;
    rank->has_ended = true;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0) continue;
    rank->ending = WIFEXITED(status) ? fmt::format("ended with code {}", code)
                                     : fmt::format("ended by signal {} ({})", WTERMSIG(status),
                                                   ::strsignal(WTERMSIG(status)));
    if (code_ == 0) code_ = code;
    is_to_end_ = true;
    if (!grace_) grace_.emplace(launch_.grace_seconds);
  }
}

void LocalRanks::kill_ranks() {
  for (const Rank& rank : ranks_) {
    if (!rank.has_ended) ::kill(rank.process.id, SIGKILL);
  }
  grace_.reset();
}

std::string LocalRanks::last_words() {
  for (const Rank& rank : ranks_) {
    if (!rank.ending.empty() && !accounts_.has(rank.number))
      accounts_.add(rank.number, rank.ending, RankAccounts::Shown::no);
  }
  return accounts_.summary(launch_.ranks, is_read_with_lines_);
}

}  // namespace

int launch_ranks(const RankLaunch& launch) {
  check(launch);
  return LocalRanks(launch).run();
}

}  // namespace ottava
