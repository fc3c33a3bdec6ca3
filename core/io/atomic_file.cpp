#include "core/io/atomic_file.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/folder.h"

namespace ottava {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".tmp";
constexpr size_t kDigits = 16;

bool is_temporary(std::string_view name) {
  if (name.size() <= kMark.size() + kDigits) return false;
  const std::string_view end = name.substr(name.size() - kMark.size() - kDigits);
  return end.starts_with(kMark) &&
         end.find_first_not_of("0123456789abcdef", kMark.size()) == std::string_view::npos;
}

std::string temporary_beside(const std::string& path) {
  // Several processes, on several machines, may write the same path at once.
  std::random_device random;
  return fmt::format("{}{}{:08x}{:08x}", path, kMark, random(), random());
}

// What a file that is made now says of the time, by the clock that stamps files there: a file server's
// may be far from this machine's. It stays empty, as a full disk has room for no other. Nothing if none can
// be made.
std::optional<fs::file_time_type> time_in(const std::string& folder) {
  const std::string path = temporary_beside(folder + "/clock");
  std::optional<fs::file_time_type> time;
  try {
    File::create(path).close();
    time = fs::last_write_time(path);
  } catch (const std::exception&) {
  }
  ::unlink(path.c_str());
  return time;
}

struct Replacement {
  std::string path;
  std::function<void(const std::string& temporary)> write;
};

void replace_atomically(std::span<const Replacement> files) {
  std::vector<std::string> temporaries;
  try {
    for (const Replacement& file : files) {
      std::error_code none;
      if (fs::is_directory(file.path, none))
        fail<FileError>("file", "cannot replace {}: it is a folder", file.path);
      temporaries.push_back(temporary_beside(file.path));
      file.write(temporaries.back());
    }
    for (size_t i = 0; i < files.size(); ++i) rename_file("file", temporaries[i], files[i].path);
  } catch (...) {
    for (const std::string& temporary : temporaries) ::unlink(temporary.c_str());
    throw;
  }
  for (const Replacement& file : files) {
    const fs::path folder = fs::path(file.path).parent_path();
    sync_folder(folder.empty() ? "." : folder.string());
  }
}

void copy_file_synced(const std::string& from, const std::string& to) {
  constexpr int64_t kPiece = int64_t{4} << 20;
  const File source = File::open_for_reading(from);
  File copy = File::create(to);
  const int64_t size = source.size();
  std::vector<char> piece(static_cast<size_t>(std::min(size, kPiece)));
  for (int64_t done = 0; done < size; done += std::ssize(piece)) {
    const auto bytes = static_cast<size_t>(std::min(size - done, kPiece));
    source.read_at(piece.data(), bytes, done);
    copy.write_uncached(piece.data(), bytes, done);
  }
  copy.sync();
  copy.close();
}

}  // namespace

void write_file_atomically(const std::string& path, std::string_view content) {
  const FileToWrite file{path, content};
  write_files_atomically({&file, 1});
}

void write_files_atomically(std::span<const FileToWrite> files) {
  std::vector<Replacement> replacements;
  for (const FileToWrite& file : files) {
    replacements.push_back(
        {file.path, [&](const std::string& temporary) { write_file_synced(temporary, file.content); }});
  }
  replace_atomically(replacements);
}

void copy_file_atomically(const std::string& from, const std::string& path) {
  const Replacement copy{path, [&](const std::string& temporary) { copy_file_synced(from, temporary); }};
  replace_atomically({&copy, 1});
}

std::vector<std::string> remove_half_written(const std::string& folder) {
  constexpr auto kAge = std::chrono::minutes(10);
  std::vector<std::string> removed;
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code none;
    if (is_temporary(it->path().filename().string()) && it->is_regular_file(none))
      found.push_back(it->path());
  }
  const auto now = found.empty() ? std::nullopt : time_in(folder);
  if (!now) return removed;
  for (const fs::path& path : found) {
    const auto written = fs::last_write_time(path, error);
    if (error || *now - written < kAge) continue;
    if (fs::remove(path, error)) removed.push_back(path.string());
  }
  return removed;
}

}  // namespace ottava
