#include "core/data/window_index.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "core/data/chat/chat_encoder.h"
#include "core/data/token_shard.h"
#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/attempts.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/log.h"

namespace ottava::data {
namespace {

constexpr std::string_view kWhere = "data index", kMagic = "OTTAVAIX";
constexpr uint64_t kVersion = 2;  // 1 had no too_long
constexpr int64_t kMaxFileBytes = int64_t{4} << 30;

void put(std::string& out, uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

constexpr std::array kCounts{&SegmentCount::windows, &SegmentCount::documents, &SegmentCount::tokens,
                             &SegmentCount::dropped, &SegmentCount::bytes,     &SegmentCount::too_long};

void add(SegmentCount& sum, const SegmentCount& c) {
  for (auto count : kCounts) sum.*count += c.*count;
}

// A sum over all blocks must not overflow.
bool plausible(const SegmentCount& c) {
  constexpr int64_t kLimit = int64_t{1} << 40;
  return std::ranges::all_of(kCounts, [&](auto count) { return c.*count >= 0 && c.*count < kLimit; });
}

}  // namespace

WindowIndex::WindowIndex(std::string folder, uint64_t key, int64_t blocks, IndexAccess access)
    : key_(key), blocks_(blocks), access_(access), counts_(blocks) {
  if (folder.empty()) return;
  if (access == IndexAccess::read_write) {
    const std::string reason = in_three_attempts(
        {.complaint = fmt::format("the folder of the data index {} could not be used", folder)},
        [&] { return make_writable_folder(folder); });
    if (!reason.empty()) fail<FileError>(kWhere, "cannot write into the folder '{}': {}", folder, reason);
  }
  path_ = fmt::format("{}/windows-{:016x}.idx", folder, key);
  merge_from_file();
  saved_ = known_;
}

std::optional<std::vector<SegmentCount>> WindowIndex::find(int64_t block) const {
  std::lock_guard lock(mutex_);
  const auto& segments = counts_[block];
  return segments.empty() ? std::nullopt : std::optional(segments);
}

void WindowIndex::set(int64_t block, std::vector<SegmentCount> segments) {
  std::lock_guard lock(mutex_);
  auto& known = counts_[block];
  if (!known.empty() || segments.empty()) return;
  for (const SegmentCount& c : segments) add(total_, c);
  known = std::move(segments);
  ++known_;
}

int64_t WindowIndex::known() const {
  std::lock_guard lock(mutex_);
  return known_;
}

SegmentCount WindowIndex::total() const {
  std::lock_guard lock(mutex_);
  return total_;
}

// magic, version, key, blocks, entries, then per entry {block, segments, segments * SegmentCount}, then XXH64
// of all that.
std::string WindowIndex::serialize() const {
  std::lock_guard lock(mutex_);
  std::string out(kMagic);
  for (uint64_t value : {kVersion, key_, static_cast<uint64_t>(blocks_), static_cast<uint64_t>(known_)})
    put(out, value);
  for (size_t block = 0; block < counts_.size(); ++block) {
    if (counts_[block].empty()) continue;
    put(out, block);
    put(out, counts_[block].size());
    out.append(reinterpret_cast<const char*>(counts_[block].data()),
               counts_[block].size() * sizeof(SegmentCount));
  }
  put(out, XXH64(out.data(), out.size(), 0));
  return out;
}

void WindowIndex::merge_from_file() {
  const auto warn = [&](std::string_view problem) {
    log::warning("data index: '{}' is not used and will be rewritten: {}", path_, problem);
  };
  const auto read = [&] {
    return is_there(path_) ? std::optional(read_file(path_, kMaxFileBytes)) : std::nullopt;
  };
  try {
    const std::optional<std::string> bytes =
        in_three_attempts({.complaint = fmt::format("data index: '{}' could not be read", path_)}, read);
    if (bytes && !merge(*bytes)) warn("it is damaged or from an earlier version");
  } catch (const FileError& unreadable) {
    warn(unreadable.what());
  }
}

bool WindowIndex::merge(const std::string& bytes) {
  size_t at = kMagic.size(), end = bytes.size() - std::min<size_t>(bytes.size(), 8);
  auto get = [&](uint64_t& value) {
    if (at + 8 > end) return false;
    std::memcpy(&value, bytes.data() + at, 8);
    at += 8;
    return true;
  };
  uint64_t version = 0, key = 0, blocks = 0, entries = 0, checksum = 0;
  if (!bytes.starts_with(kMagic) || !get(version) || !get(key) || !get(blocks) || !get(entries)) return false;
  std::memcpy(&checksum, bytes.data() + end, 8);
  if (checksum != XXH64(bytes.data(), end, 0)) return false;
  if (version != kVersion || key != key_ || blocks != static_cast<uint64_t>(blocks_)) return false;
  std::vector<std::pair<int64_t, std::vector<SegmentCount>>> found;
  for (; entries > 0; --entries) {
    uint64_t block = 0, segments = 0;
    if (!get(block) || !get(segments) || block >= blocks) return false;
    if (segments == 0 || segments > (end - at) / sizeof(SegmentCount)) return false;
    std::vector<SegmentCount> list(segments);
    std::memcpy(list.data(), bytes.data() + at, segments * sizeof(SegmentCount));
    at += segments * sizeof(SegmentCount);
    if (!std::ranges::all_of(list, plausible)) return false;
    found.emplace_back(block, std::move(list));
  }
  for (auto& [block, list] : found) set(block, std::move(list));
  return true;
}

void WindowIndex::save() {
  if (path_.empty() || access_ == IndexAccess::read_only) return;
  std::lock_guard alone(saving_);
  int64_t before = known();
  {
    std::lock_guard lock(mutex_);
    if (known_ == saved_) return;
  }
  WindowIndex in_file({}, key_, blocks_);
  in_file.path_ = path_;
  in_file.merge_from_file();
  for (int64_t block = 0; block < blocks_; ++block) set(block, std::move(in_file.counts_[block]));
  if (known() > in_file.known()) write_file_atomically(path_, serialize());
  std::lock_guard lock(mutex_);
  saved_ = std::max(saved_, before);
}

namespace {

// It changes whenever the rules of cutting, splitting or packing do, but only for the data that they concern;
// a run on other data continues as if nothing had changed.
int version_of_rules(const IndexKey& key) {
  const auto any = [&](auto is) { return std::ranges::any_of(key.corpus.files(), is, &DataFile::format); };
  if (key.encoder.chat) return 2;  // 1 left out the system message and the thoughts that stand apart
  if (any([](Format f) { return f == Format::text; })) return 3;  // 2 cut long documents between separators
  // 1 put the token between two documents twice
  return key.encoder.bos_is_eos && any([](Format f) { return !is_tokenized(f); }) ? 2 : 1;
}

}  // namespace

uint64_t IndexKey::hash(Identity of) const {
  const std::optional<int32_t> eos = encoder.bos_is_eos ? encoder.bos_id : encoder.eos_id;
  std::string all = fmt::format("ottava windows {}\n{}\n{} {}\n{}\n{}\n{} {}\n", version_of_rules(*this),
                                encoder.fingerprint, encoder.bos_id.value_or(-1), eos.value_or(-1), text_key,
                                seq_len, corpus.sizes().block_bytes, corpus.sizes().max_text_bytes);
  if (encoder.chat) all += encoder.chat->description() + "\n";
  for (const DataFile& file : corpus.files()) {
    all += fmt::format("{} {} {} {:x}\n", static_cast<int>(file.format), static_cast<int>(file.compression),
                       file.bytes, file.content);
    if (of != Identity::files) continue;
    all += fmt::format("{} {}\n", file.path, file.mtime_ns);
    std::error_code error;  // of a file that is gone, which opening it reports
    if (file.format == Format::megatron_shard) {
      const auto time = std::filesystem::last_write_time(megatron_idx(file.path), error);
      all += fmt::format("{}\n", time.time_since_epoch().count());
    }
  }
  return XXH64(all.data(), all.size(), 0);
}

}  // namespace ottava::data
