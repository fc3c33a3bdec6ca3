#include "apps/decide/measurement_cache.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/descriptor.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/uninterrupted.h"
#include "core/log.h"
#include "core/text/number.h"

namespace ottava {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(std::string_view setting) {
  if (setting != "auto") return setting;
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  // The XDG base directory specification has relative paths ignored.
  if (const fs::path cache = variable("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "ottava";
  if (const std::string home = variable("HOME"); !home.empty()) return fs::path(home) / ".cache" / "ottava";
  return {};
}

constexpr std::string_view kVersion = ", measured in way ";

// Whether both are for the same subject, each measured in some way.
bool differs_in_version(std::string_view made_for, std::string_view subject) {
  if (!made_for.starts_with(subject)) return false;
  made_for.remove_prefix(subject.size());
  if (made_for.empty()) return true;
  return made_for.starts_with(kVersion) && parse_number<int>(made_for.substr(kVersion.size())).has_value();
}

// Only the process that has it writes into the folder. The folder itself is locked, so that no file is left
// in it. A file system that knows no locks, or another process that hangs with this one, costs at most that
// an entry is measured again.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    constexpr int kTries = 200;
    const auto lock = [&] { return ::flock(folder_, LOCK_EX | LOCK_NB); };
    for (int i = 0; i < kTries && uninterrupted(lock) != 0 && errno == EWOULDBLOCK; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

 private:
  Descriptor folder_;
};

}  // namespace

MeasurementCache::MeasurementCache(const Kind& kind, std::string_view setting, std::string_view subject)
    : kind_(kind), subject_(fmt::format("{}{}", kind.title, subject)), made_for_(subject_) {
  if (kind.version > 0) made_for_ += fmt::format("{}{}", kVersion, kind.version);
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
  if (cached.made_for != made_for_) {
    if (differs_in_version(cached.made_for, subject_)) return {.made_for = made_for_};
    fail<FileError>(where, "{} holds {}, expected {}", file_, cached.made_for, made_for_);
  }
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
    const fs::path folder = fs::path(file_).parent_path();
    require_folder("file", folder.string());
    const FolderLock lock(folder);
    std::error_code error;
    if (fs::exists(file_, error)) {
      try {
        all = parse();              // with what other runs have measured meanwhile
      } catch (const FileError&) {  // was said when it was read
      }
    }
    for (const Decisions::Entry& entry : entries) {
      const Decisions::Entry* kept = all.find(entry.name);
      if (kept && kind_.stays && kind_.stays(*kept, entry)) continue;
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
