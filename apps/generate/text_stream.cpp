#include "apps/generate/text_stream.h"

#include <algorithm>
#include <utility>

#include "core/contains.h"
#include "core/error.h"

namespace ottava {
namespace {

/// Number of bytes at the end of `text` that begin a character without ending it.
size_t unfinished_character(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

/// Number of bytes at the end of `text` with which `stop` begins.
size_t begun(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
  if (contains(stops_, ""))
    fail<ConfigError>("generate", "a stop string is empty: it would stop every text at once");
}

std::string TextStream::take(std::string_view more) {
  if (stopped_) return {};
  pending_ += more;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, pending_.find(stop));
  stopped_ = end != std::string::npos;
  if (!stopped_) {
    size_t waiting = unfinished_character(pending_);
    for (const std::string& stop : stops_) waiting = std::max(waiting, begun(pending_, stop));
    end = pending_.size() - waiting;
  }
  std::string shown = pending_.substr(0, end);
  pending_.erase(0, stopped_ ? pending_.size() : end);
  return shown;
}

std::string TextStream::rest() { return std::exchange(pending_, {}); }

}  // namespace ottava
