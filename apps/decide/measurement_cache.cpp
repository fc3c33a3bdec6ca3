#include "apps/decide/measurement_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/file.h"
#include "core/log.h"

namespace ottava {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(std::string_view setting) {
  if (setting != "auto") return setting;
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return fs::path(cache) / "ottava";
  if (const std::string home = variable("HOME"); !home.empty()) return fs::path(home) / ".cache" / "ottava";
  return {};
}

}  // namespace

MeasurementCache::MeasurementCache(const Kind& kind, std::string_view setting, std::string_view subject)
    : kind_(kind), made_for_(fmt::format("{}{}", kind.title, subject)) {
  if (setting == "off") return;
  const fs::path folder = folder_of(setting);
  if (folder.empty()) return;
  std::string name(kind.name);
  name += '-';
  for (char c : subject) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) || c == '.') {
      name += static_cast<char>(std::tolower(letter));
    } else if (name.back() != '-') {
      name += '-';
    }
  }
  file_ = (folder / (name + ".json")).string();
}

// Nothing but whole entries is ever written, so anything else is damage.
Decisions MeasurementCache::parse() const {
  Decisions cached = parse_decisions(read_file(file_), file_);
  const std::string where = fmt::format("{} cache", kind_.name);
  if (cached.made_for != made_for_)
    fail<FileError>(where, "{} holds {}, expected {}", file_, cached.made_for, made_for_);
  for (const Decisions::Entry& e : cached.entries) {
    if (!kind_.is_entry(e))
      fail<FileError>(where, "{}: '{}' = '{}' is none of {}", file_, e.name, e.value, kind_.things);
  }
  return cached;
}

Decisions MeasurementCache::read() const {
  std::error_code error;
  if (file_.empty() || !fs::exists(file_, error)) return {};
  try {
    return parse();
  } catch (const FileError& damage) {
    log::warning("{} are measured again and stored anew: {}", kind_.things, damage.what());
    return {};
  }
}

void MeasurementCache::write(const std::vector<Decisions::Entry>& entries) const {
  if (file_.empty() || entries.empty()) return;
  Decisions all{.made_for = made_for_};
  try {
    fs::create_directories(fs::path(file_).parent_path());
    std::error_code error;
    if (fs::exists(file_, error)) {
      try {
        all = parse();              // with what other runs have measured meanwhile
      } catch (const FileError&) {  // was said when it was read
      }
    }
    for (const Decisions::Entry& entry : entries) {
      std::erase_if(all.entries, [&](const Decisions::Entry& e) { return e.name == entry.name; });
      all.entries.push_back(entry);
    }
    std::ranges::sort(all.entries, {}, &Decisions::Entry::name);
    write_file_atomically(file_, to_json(all));
  } catch (const std::exception& reason) {
    log::warning("{} cannot be stored in {} ({}): set training.gemm_cache to a writable folder or to off",
                 kind_.things, file_, reason.what());
  }
}

}  // namespace ottava
