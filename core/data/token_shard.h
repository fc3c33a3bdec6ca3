#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/byte_stream.h"
#include "core/data/data_file.h"

namespace ottava::data {

/// Header of our own shards, little endian, 128 bytes. It is followed by `tokens` tokens, zero bytes up to a
/// multiple of 8, and documents + 1 offsets (u64, in tokens; the first is 0, the last is `tokens`).
struct ShardHeader {
  static constexpr std::string_view kMagic = "OTTAVATK";
  static constexpr uint32_t kVersion = 1;
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;  ///< 2 or 4
  uint64_t tokens, documents;
  int32_t bos_id, eos_id;  ///< -1: none was written around documents
  uint32_t vocab_size, zero;
  uint64_t checksum;         ///< XXH64 of the token bytes
  char fingerprint[64];      ///< of the tokenizer, zero padded
  uint64_t header_checksum;  ///< XXH64 of the bytes before it
};
static_assert(sizeof(ShardHeader) == 128);

/// Path of the table that belongs to a Megatron .bin.
std::string megatron_idx(const std::string& bin);

/// The format of a token file, by its first bytes (for Megatron, by the .idx beside a .bin); nothing if it is
/// not a shard.
std::optional<Format> sniff_shard(const std::string& path, std::string_view head);

/// Tokens on disk: one contiguous run of u16 or u32 at [begin(), end()) bytes of the file, cut into
/// documents. Ids are not checked here: the reader knows the vocabulary. Safe to use from several threads.
class TokenShard {
 public:
  /// Checks header, sizes and table bounds. Throws FileError.
  static std::unique_ptr<TokenShard> open(const std::string& path, Format format);
  virtual ~TokenShard() = default;

  const File& file() const { return file_; }
  int64_t token_bytes() const { return token_bytes_; }
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  int64_t tokens() const { return (end_ - begin_) / token_bytes_; }
  /// The tokenizer that made the tokens; empty if the format does not say.
  const std::string& fingerprint() const { return fingerprint_; }

  /// The token that begins every document where the format says so in place of a table (llm.c).
  virtual std::optional<int32_t> first_token() const { return {}; }

  /// The byte where the first document at or after byte `offset` starts (end() if none does). A document that
  /// starts more than 1 MiB further on is cut at `offset`, so that blocks stay small. cut(0) = begin().
  int64_t cut(int64_t offset) const;
  /// Bytes at which documents start within [first, last), both results of cut(); `first` is always among
  /// them.
  virtual std::vector<int64_t> document_starts(int64_t first, int64_t last) const = 0;

 protected:
  TokenShard(File file, int64_t token_bytes) : file_(std::move(file)), token_bytes_(token_bytes) {}
  virtual int64_t next_document(int64_t offset) const = 0;

  File file_;
  int64_t token_bytes_, begin_ = 0, end_ = 0;
  std::string fingerprint_;
};

/// The header of one of our own shards, checked. Throws FileError.
ShardHeader read_shard_header(const File& file);

}  // namespace ottava::data
