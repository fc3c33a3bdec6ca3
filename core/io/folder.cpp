#include "core/io/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>

#include "core/error.h"
#include "core/io/descriptor.h"
#include "core/io/system_failure.h"
#include "core/io/uninterrupted.h"

namespace ottava {
namespace {

namespace fs = std::filesystem;

// What is found there, if anything is. `look` is stat or lstat.
std::optional<mode_t> mode_of(const std::string& path, int (*look)(const char*, struct stat*)) {
  struct stat status = {};
  if (look(path.c_str(), &status) == 0) return status.st_mode;
  const int code = errno;
  if (is_of_missing(code)) return std::nullopt;
  fail_for_system(code, "file", "cannot look at " + path);
}

// Names the first link on the way to `path` that leads nowhere; empty: there is none.
std::string broken_link(const fs::path& path) {
  fs::path way;
  for (const fs::path& part : path) {
    way /= part;
    std::error_code none;
    struct stat status = {};
    if (!fs::is_symlink(way, none) || ::stat(way.c_str(), &status) == 0) continue;
    const std::string reason = std::strerror(errno);
    return fmt::format("{} is a link to {}, which cannot be followed: {}", way.string(),
                       fs::read_symlink(way, none).string(), reason);
  }
  return {};
}

std::error_code make_and_flush(const std::string& folder) {
  std::vector<std::string> above;  // of those that are made, the innermost first
  std::error_code error, none;
  for (fs::path path = fs::absolute(folder, error); !error && !fs::exists(path, none);
       path = path.parent_path())
    above.push_back(path.parent_path().string());
  if (!error) fs::create_directories(folder, error);
  if (error) return error;
  for (const std::string& path : above) sync_folder(path);
  return {};
}

std::string reason_of(const std::error_code& error, const std::string& folder) {
  const std::string link = broken_link(folder);
  return link.empty() ? error.message() : link;
}

// What glob calls has no other way to tell why it ended.
struct Failure {
  const char* to_do = "list";  // with the folder that was opened last, or the path that was looked at
  std::string path;
  int code = 0;
};
thread_local Failure failure;

// To glob a listing that fails midway has ended: what is opened next ends it.
void* open_folder(const char* path) {
  if (failure.code != 0) return errno = failure.code, nullptr;
  failure.path = path;
  return ::opendir(path);
}
dirent* next_entry(void* open) {
  errno = 0;
  dirent* entry = ::readdir(static_cast<DIR*>(open));
  if (!entry && failure.code == 0) failure.code = errno;
  return entry;
}
// At the top of a disk: only root may look into it, and what it has is no one's data.
bool is_lost_and_found(const std::string& path, int code) {
  const fs::path parts(path);
  return code == EACCES && std::ranges::find(parts, "lost+found") != parts.end();
}
int stops_at(const char* path, int code) {
  if (is_of_missing(code) || is_lost_and_found(path, code)) return 0;
  failure.code = code;
  return 1;
}
// To glob what it cannot look at is not there: a last part without a wildcard, or a folder behind a link. A
// link to itself leads nowhere.
template <int (*look)(const char*, struct stat*)>
int look_at(const char* path, struct stat* status) {
  const int result = look(path, status), code = errno;
  if (result != 0 && !is_of_missing(code) && code != ELOOP && failure.code == 0 &&
      !is_lost_and_found(path, code))
    failure = {.to_do = "look at", .path = path, .code = code};
  return result;
}

}  // namespace

bool is_there(const std::string& path) { return mode_of(path, ::stat).has_value(); }
bool is_folder(const std::string& path) { return S_ISDIR(mode_of(path, ::stat).value_or(0)); }
bool is_taken(const std::string& path) { return mode_of(path, ::lstat).has_value(); }

std::string unused_name(const std::string& path) {
  std::string name = path;
  for (int number = 2; is_taken(name); ++number) name = fmt::format("{}-{}", path, number);
  return name;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) fail_for_system(error.value(), "file", "cannot list " + folder);
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> paths_matching(std::string_view where, const std::string& glob) {
  failure = {};
  glob_t found{};
  found.gl_opendir = open_folder, found.gl_readdir = next_entry, found.gl_lstat = look_at<::lstat>,
  found.gl_stat = look_at<::stat>;
  found.gl_closedir = [](void* open) { ::closedir(static_cast<DIR*>(open)); };
  const int result = ::glob(glob.c_str(), GLOB_NOSORT | GLOB_ALTDIRFUNC, stops_at, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (failure.code != 0)
    fail_for_system(failure.code, where,
                    fmt::format("'{}': cannot {} '{}'", glob, failure.to_do, failure.path));
  if (result == GLOB_NOSPACE) throw std::bad_alloc();
  return paths;
}

std::string make_folders(const std::string& folder) {
  const std::error_code error = make_and_flush(folder);
  if (is_of_system(error.value()))
    fail_for_system(error.value(), "file", "cannot create the folder " + folder);
  return error ? reason_of(error, folder) : "";
}

std::string make_writable_folder(const std::string& folder) {
  if (std::string reason = make_folders(folder); !reason.empty()) return reason;
  return why_not_writable(folder);
}

std::string why_not_writable(const std::string& folder) {
  fs::path nearest = fs::absolute(folder);
  while (!is_taken(nearest.string())) nearest = nearest.parent_path();
  if (!is_folder(nearest.string())) {
    const std::string link = broken_link(nearest);
    return link.empty() ? fmt::format("{} is not a folder", nearest.string()) : link;
  }
  if (::access(nearest.c_str(), W_OK | X_OK) == 0) return "";
  const int code = errno;
  if (is_of_system(code)) fail_for_system(code, "file", "cannot write into the folder " + nearest.string());
  return std::strerror(code);
}

void require_folder(std::string_view where, const std::string& folder) {
  const std::error_code error = make_and_flush(folder);
  if (!error) return;
  if (broken_link(folder).empty())
    fail_for_system(error.value(), where, "cannot create the folder " + folder);
  fail<Missing>(where, "cannot create the folder {}: {}", folder, reason_of(error, folder));
}

void sync_folder(const std::string& folder) {
  const Descriptor descriptor(
      uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  const auto require = [&](bool is_done, std::string_view action) {
    if (is_done) return;
    const int code = errno;
    fail_for_system(code, "file", fmt::format("cannot {} the folder {}", action, folder));
  };
  require(descriptor.is_open(), "open");
  // Some network file systems cannot flush a folder and say EINVAL; renames are ordered there by the server.
  require(uninterrupted([&] { return ::fsync(descriptor); }) == 0 || errno == EINVAL, "flush");
}

}  // namespace ottava
