#include "core/io/json_lines.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/folder.h"

namespace ottava {
namespace {

// Bytes up to the last readable line before the first whose step is past `last`. Unreadable ones between
// readable ones stay.
int64_t kept_bytes(const std::string& text, const std::string& path, int64_t last) {
  size_t kept = 0;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    try {
      const Json line = Json::parse(std::string_view(text).substr(begin, end - begin), path);
      if (line.at("step", path).as_integer(path) > last) break;
      kept = end + 1;
    } catch (const FileError&) {  // of a disk or a person
    }
  }
  return static_cast<int64_t>(kept);
}

Json line_of(int64_t step) {
  const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
  return Json().set("step", step).set("time", std::round(time.count() * 1000) / 1000);
}

}  // namespace

JsonLines::JsonLines(const std::string& path, int64_t resumed_at, Cut cut) {
  std::error_code ignored;
  bool exists = std::filesystem::exists(path, ignored);
  if (exists && resumed_at == 0) {
    if (std::filesystem::file_size(path, ignored) > 0)
      rename_file("metrics", path, unused_name(path + ".previous"));
    exists = false;
  }
  if (!exists) {
    file_ = File::create(path);
    return;
  }
  const std::string text = read_file(path, std::numeric_limits<int64_t>::max());
  end_ = kept_bytes(text, path, resumed_at);
  if (cut == Cut::kept_apart && end_ < std::ssize(text))
    write_file_atomically(unused_name(path + ".abandoned"), text);
  file_ = File::open_for_writing(path);
  file_.truncate(end_);
}

void JsonLines::append(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  Json line = line_of(step), non_finite;
  for (const auto& [name, value] : scalars) {
    line.set(name, value);
    if (!std::isfinite(value)) non_finite.set(name, std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  }
  if (!non_finite.is_null()) line.set("non_finite", std::move(non_finite));
  write(line);
}

void JsonLines::append(int64_t step, const std::string& name, Json value) {
  write(line_of(step).set(name, std::move(value)));
}

void JsonLines::write(const Json& line) {
  const std::string text = line.dump() + "\n";
  file_.write_at(text.data(), text.size(), end_);
  end_ += std::ssize(text);
}

}  // namespace ottava
