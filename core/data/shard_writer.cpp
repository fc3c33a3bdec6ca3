#include "core/data/shard_writer.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/data/byte_stream.h"
#include "core/data/token_shard.h"
#include "core/error.h"
#include "core/io/attempts.h"

namespace ottava::data {
namespace {

constexpr size_t kBufferBytes = 4 << 20;
constexpr int64_t kHeaderBytes = sizeof(ShardHeader);

using ChecksumState = std::unique_ptr<XXH64_state_t, void (*)(XXH64_state_t*)>;

ChecksumState new_state() {
  ChecksumState state(XXH64_createState(), [](XXH64_state_t* s) { XXH64_freeState(s); });
  XXH64_reset(state.get(), 0);
  return state;
}

}  // namespace

ShardWriter::ShardWriter(const std::string& path, const TextEncoder& encoder)
    : complaint_(fmt::format("'{}' could not be written", path)), checksum_(new_state()) {
  in_three_attempts({.complaint = complaint_}, [&] { file_ = File::create(path); });
  ShardHeader::kMagic.copy(header_.magic, sizeof header_.magic);
  header_.version = ShardHeader::kVersion;
  header_.token_bytes = encoder.vocab_size <= 65536 ? 2 : 4;
  header_.bos_id = encoder.bos_id.value_or(-1);
  header_.eos_id = encoder.eos_id.value_or(-1);
  header_.vocab_size = encoder.vocab_size;
  shard_fingerprint(encoder.fingerprint).copy(header_.fingerprint, sizeof header_.fingerprint);
}

void ShardWriter::append(std::span<const int32_t> document) {
  if (document.empty()) return;
  for (int32_t id : document) {
    if (id < 0 || static_cast<uint32_t>(id) >= header_.vocab_size) {
      fail<DataError>("data", "token id {} for '{}' is outside the vocabulary of {}", id, file_.path(),
                      header_.vocab_size);
    }
  }
  for (int32_t id : document)
    buffer_.append(reinterpret_cast<const char*>(&id), header_.token_bytes);  // little endian
  offsets_.push_back(offsets_.back() + std::ssize(document));
  if (buffer_.size() >= kBufferBytes) flush();
}

void ShardWriter::flush() {
  XXH64_update(checksum_.get(), buffer_.data(), buffer_.size());
  in_three_attempts({.complaint = complaint_},
                    [&] { file_.write_at(buffer_.data(), buffer_.size(), kHeaderBytes + written_); });
  written_ += std::ssize(buffer_);
  buffer_.clear();
}

void ShardWriter::finish() {
  flush();
  std::string table(-(kHeaderBytes + written_) & 7, '\0');
  table.append(reinterpret_cast<const char*>(offsets_.data()), offsets_.size() * sizeof(int64_t));

  header_.tokens = tokens();
  header_.documents = documents();
  header_.checksum = XXH64_digest(checksum_.get());
  header_.header_checksum = XXH64(&header_, offsetof(ShardHeader, header_checksum), 0);
  bool is_again = false;
  in_three_attempts({.complaint = complaint_}, [&] {
    if (std::exchange(is_again, true)) write_tokens_again();
    file_.write_at(table.data(), table.size(), kHeaderBytes + written_);
    file_.sync();
    file_.write_at(&header_, sizeof header_, 0);
    file_.sync();
  });
  file_.close();
}

// After a flush that failed, the system may hold what it could not write for written, and forget it: a second
// flush would say nothing.
void ShardWriter::write_tokens_again() {
  const File written = File::open_for_reading(file_.path());
  const ChecksumState checksum = new_state();
  const int64_t end = kHeaderBytes + written_;
  std::string bytes;
  for (int64_t at = kHeaderBytes; at < end; at += std::ssize(bytes)) {
    bytes.resize(std::min<int64_t>(end - at, kBufferBytes));
    written.read_at(bytes.data(), bytes.size(), at);
    XXH64_update(checksum.get(), bytes.data(), bytes.size());
    file_.write_at(bytes.data(), bytes.size(), at);
  }
  if (XXH64_digest(checksum.get()) != header_.checksum)
    fail<FileError>("data", "'{}' lost tokens when it could not be flushed: prepare the data again",
                    file_.path());
}

std::string shard_fingerprint(const std::string& fingerprint) {
  if (fingerprint.size() <= sizeof(ShardHeader::fingerprint)) return fingerprint;
  return fmt::format("xxh64:{:016x}", XXH64(fingerprint.data(), fingerprint.size(), 0));
}

uint64_t compute_token_checksum(const File& file, int64_t begin, int64_t end) {
  ChecksumState state = new_state();
  std::string bytes;
  for (int64_t at = begin; at < end; at += std::ssize(bytes)) {
    bytes.clear();
    append_range(file, at, std::min<int64_t>(end - at, kBufferBytes), bytes);
    if (bytes.empty()) fail<FileError>("data", "'{}' became shorter while it was read", file.path());
    XXH64_update(state.get(), bytes.data(), bytes.size());
  }
  return XXH64_digest(state.get());
}

}  // namespace ottava::data
