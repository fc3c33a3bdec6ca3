#include "core/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "core/error.h"

namespace ottava::log {
namespace {

spdlog::logger& logger() {
  static std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("ottava", std::make_shared<spdlog::sinks::stdout_color_sink_mt>());
    made->set_pattern("[ottava] %Y-%m-%d %H:%M:%S,%e - %l - %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

thread_local RankView view;

spdlog::level::level_enum translate(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warning: return spdlog::level::warn;
    default: return spdlog::level::err;
  }
}

}  // namespace

void set_level(Level level) { logger().set_level(translate(level)); }

void set_file(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    sink->set_pattern("[ottava] %Y-%m-%d %H:%M:%S,%e - %l - %v");
    logger().sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& e) {
    fail<FileError>("log", "cannot write {}: {}", path, e.what());
  }
}

void set_rank(RankView v) { view = v; }

void write(Level level, std::string_view text) {
  if (view.quiet && level < Level::warning) return;
  if (view.world_size > 1 && (view.rank != 0 || level >= Level::warning)) {
    logger().log(translate(level), "rank {}: {}", view.rank, text);
  } else {
    logger().log(translate(level), "{}", text);
  }
}

}  // namespace ottava::log
