#include "core/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace ottava::log {
namespace {

// The level as Python's logging spells it, so that one pattern finds it in every trainer's log.
class LevelName : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string_view name = message.level == spdlog::level::info   ? "INFO"
                                  : message.level == spdlog::level::warn ? "WARNING"
                                                                         : "ERROR";
    out.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<LevelName>(); }
};

std::unique_ptr<spdlog::formatter> line_format() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<LevelName>('*').set_pattern("[ottava] %Y-%m-%d %H:%M:%S,%e - %* - %v");
  return formatter;
}

spdlog::logger& logger() {
  static std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("ottava", std::make_shared<spdlog::sinks::stdout_sink_mt>());
    made->set_formatter(line_format());
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

thread_local RankView view;

// That of the first line which standard output did not take although somebody reads it. Whoever closes a pipe
// wants no more lines.
void tell_of_lost_lines(int code) {
  static bool said = false;
  if (std::ferror(stdout) == 0 || code == 0 || code == EPIPE || std::exchange(said, true)) return;
  std::fprintf(stderr,
               "ottava: WARNING: lines of the log cannot be written (%s): what does not fit is missing\n",
               std::strerror(code));
}

// Guards the status line and keeps log lines from being glued to it.
std::mutex status_mutex;
bool status_shown = false;

void clear_status() {
  if (!status_shown) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  status_shown = false;
}

spdlog::level::level_enum translate(Level level) {
  switch (level) {
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    default:
      return spdlog::level::err;
  }
}

using Clock = std::chrono::steady_clock;

std::atomic<Clock::duration> writes_since = Clock::duration::zero();  // of the clock; 0: nothing is written

/// A line is being written while this lives.
struct Writing {
  Writing() { writes_since = Clock::now().time_since_epoch(); }
  ~Writing() { writes_since = Clock::duration::zero(); }
};

std::string with_rank(Level level, std::string_view text) {
  const bool is_named = view.world_size > 1 && (view.rank != 0 || level >= Level::warning);
  return is_named ? fmt::format("rank {}: {}", view.rank, text) : std::string(text);
}

}  // namespace

void set_level(Level level) { logger().set_level(translate(level)); }

void set_rank(RankView v) { view = v; }

RankView rank_view() { return view; }

void status(std::string_view line) {
  std::lock_guard guard(status_mutex);
  if (line.empty()) return clear_status();
  std::fprintf(stderr, "\r\033[K%.*s", static_cast<int>(line.size()), line.data());
  std::fflush(stderr);
  status_shown = true;
}

void write(Level level, std::string_view text) {
  if (view.quiet && level < Level::warning) return;
  std::lock_guard guard(status_mutex);
  if (logger().should_log(translate(level))) clear_status();
  const Writing writing;
  errno = 0;
  logger().log(translate(level), "{}", with_rank(level, text));
  tell_of_lost_lines(errno);
}

double seconds_waiting() {
  const Clock::duration since = writes_since;
  if (since == Clock::duration::zero()) return 0;
  return std::chrono::duration<double>(Clock::now().time_since_epoch() - since).count();
}

std::string line(Level level, std::string_view text) {
  const std::string said = with_rank(level, text);
  spdlog::memory_buf_t out;
  line_format()->format(spdlog::details::log_msg("ottava", translate(level), said), out);
  return {out.data(), out.size()};
}

}  // namespace ottava::log
