#include "core/io/json_lines.h"

#include <chrono>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/folder.h"
#include "core/io/last_lines.h"

namespace ottava {
namespace {

// Bytes up to the last readable line whose step is not past `last`. Steps ascend, so that nothing before it
// is read, however long the run was.
int64_t kept_bytes(const File& file, int64_t last) {
  LastLines lines(file);
  while (lines.next()) {
    try {
      const Json line = Json::parse(lines.text(), file.path());
      if (line.at("step", file.path()).as_integer(file.path()) <= last) return lines.end();
    } catch (const FileError&) {  // of a disk or a person
    }
  }
  return 0;
}

Json line_of(int64_t step) {
  const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
  return Json().set("step", step).set("time", std::round(time.count() * 1000) / 1000);
}

}  // namespace

JsonLines::JsonLines(const std::string& path, int64_t resumed_at, Cut cut) {
  // A file server that does not answer must not pass for one that has no such file, which is then made anew.
  bool exists = is_there(path);
  if (exists && resumed_at == 0) {
    std::error_code ignored;
    if (std::filesystem::file_size(path, ignored) > 0)
      rename_file("metrics", path, unused_name(path + ".previous"));
    exists = false;
  }
  if (!exists) {
    file_ = File::create(path);
    return;
  }
  const File before = File::open_for_reading(path);
  end_ = kept_bytes(before, resumed_at);
  if (cut == Cut::kept_apart && end_ < before.size())
    copy_file_atomically(path, unused_name(path + ".abandoned"));
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
