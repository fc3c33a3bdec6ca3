#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/data/text_encoder.h"
#include "core/data/token_shard.h"
#include "core/io/file.h"

struct XXH64_state_s;  // of xxhash.h

namespace ottava::data {

/// Writes one token shard (format: ShardHeader in core/data/token_shard.h), document by document. The header
/// is written last: a file whose writing was interrupted is empty, or has no magic and is refused. Every
/// member throws FileError, of a system that fails after three attempts (attempts.h).
class ShardWriter {
 public:
  /// Tokens are stored as u16 if the vocabulary fits, else as u32.
  ShardWriter(const std::string& path, const TextEncoder& encoder);

  /// Throws DataError for an id outside the vocabulary, and then keeps nothing of the document. Empty
  /// documents are left out.
  void append(std::span<const int32_t> document);
  int64_t tokens() const { return offsets_.back(); }
  int64_t documents() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  /// Completes and flushes the file.
  void finish();

 private:
  void flush();
  void write_tokens_again();

  std::string complaint_;
  File file_;
  ShardHeader header_{};
  std::vector<int64_t> offsets_{0};
  std::string buffer_;
  int64_t written_ = 0;
  std::unique_ptr<XXH64_state_s, void (*)(XXH64_state_s*)> checksum_;
};

/// The fingerprint as a shard stores it, in at most 64 characters.
std::string shard_fingerprint(const std::string& fingerprint);

/// XXH64 of the token bytes, which the header should have; reads the whole file.
uint64_t compute_token_checksum(const File& file, int64_t begin, int64_t end);

}  // namespace ottava::data
