#include "core/data/data_version.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "core/data/token_shard.h"
#include "core/io/attempts.h"
#include "core/io/file.h"
#include "core/io/system_failure.h"

namespace ottava::data {
namespace {

std::vector<std::string> paths_of(const std::vector<DataFile>& files) {
  std::vector<std::string> paths;
  for (const DataFile& file : files) {
    paths.push_back(file.path);
    if (file.format == Format::megatron_shard) paths.push_back(megatron_idx(file.path));
  }
  return paths;
}

std::string version_now(const std::vector<DataFile>& files, int64_t whole_bytes) {
  constexpr int64_t kPiece = 1 << 20;
  const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> hash(XXH64_createState(), XXH64_freeState);
  XXH64_reset(hash.get(), 0);
  const std::vector<std::string> paths = paths_of(files);
  int64_t bytes = 0;
  for (const std::string& path : paths) bytes += File::open_for_reading(path).size();
  const bool is_whole = bytes <= whole_bytes;
  std::string piece(kPiece, '\0');
  for (const std::string& path : paths) {
    if (!is_whole) {
      std::error_code error;
      const int64_t time = std::filesystem::last_write_time(path, error).time_since_epoch().count();
      if (error) fail_for_system(error.value(), "data", fmt::format("cannot access '{}'", path));
      XXH64_update(hash.get(), &time, sizeof time);
      continue;
    }
    const File file = File::open_for_reading(path);
    const int64_t size = file.size();
    XXH64_update(hash.get(), &size, sizeof size);
    for (int64_t at = 0; at < size; at += kPiece) {
      const auto length = static_cast<size_t>(std::min(kPiece, size - at));
      file.read_at(piece.data(), length, at);
      XXH64_update(hash.get(), piece.data(), length);
    }
  }
  return fmt::format("{} {:016x}", is_whole ? "whole" : "times", XXH64_digest(hash.get()));
}

}  // namespace

std::string version_of(const std::vector<DataFile>& files, int64_t whole_bytes) {
  return in_three_attempts({.complaint = "the files of the data could not be read"},
                           [&] { return version_now(files, whole_bytes); });
}

}  // namespace ottava::data
