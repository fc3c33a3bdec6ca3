#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace ottava::log {

enum class Level { info, warning, error };

/// Lines look like `[ottava] 2026-01-31 12:00:00,000 - INFO - text`. Of several ranks, each begins its text
/// with `rank 3: `, rank 0 only in warnings and errors. The log is global, as nothing else is but the count
/// of held memory (core/held_memory.h). It is safe to call from any thread.
void set_level(Level level);
/// The rank shown in the calling thread's lines. A `quiet` rank prints warnings and errors only.
struct RankView {
  int rank = 0;
  int world_size = 1;
  bool quiet = false;
};
void set_rank(RankView view);
/// That of the calling thread.
RankView rank_view();

/// Writes one line; the functions below format it. That standard output does not take lines, as on a full
/// disk, is said once on standard error; a pipe that has no reader any more is no such case.
void write(Level level, std::string_view text);

/// The line, with its end, that write() would write for a level that is shown.
std::string line(Level level, std::string_view text);

/// For how long a line of this process has been waiting to be written, as where the pipe that it goes to
/// is not read; 0 if none is.
double seconds_waiting();

/// Shows a status line on standard error, for terminals. The next status replaces it, a log line clears it
/// first, and an empty one clears it.
void status(std::string_view line);

template <class... A>
void info(fmt::format_string<A...> format, A&&... args) {
  write(Level::info, fmt::format(format, std::forward<A>(args)...));
}
template <class... A>
void warning(fmt::format_string<A...> format, A&&... args) {
  write(Level::warning, fmt::format(format, std::forward<A>(args)...));
}
template <class... A>
void error(fmt::format_string<A...> format, A&&... args) {
  write(Level::error, fmt::format(format, std::forward<A>(args)...));
}

}  // namespace ottava::log
