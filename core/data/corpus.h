#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/data/byte_stream.h"
#include "core/data/data_file.h"
#include "core/data/token_shard.h"

namespace ottava::data {

/// A document as it was read: not parsed, not tokenized.
struct Document {
  enum class Kind : uint8_t { text, json_line, u16_tokens, u32_tokens };
  Kind kind = Kind::text;
  int32_t file = 0;
  int64_t begin = 0, end = 0;  ///< bytes of Segment::bytes
  int64_t offset = 0;          ///< of `begin` in the file's decompressed content
  bool goes_on = false;        ///< a piece that continues the document of the one before it in the segment
};

/// The unit that is tokenized and packed by itself. Its documents are in file order.
struct Segment {
  std::string bytes;
  std::vector<Document> documents;
};

/// How large blocks and documents are.
struct BlockSizes {
  int64_t block_bytes = 4 << 20;
  int64_t max_text_bytes = 32 << 10;  ///< plain text without separators becomes documents of at most this
};
/// Sizes for windows of seq_len + 1 tokens. A block's last partial window is dropped, so blocks hold at least
/// a hundred or so windows: 512 * seq_len bytes, but no less than 4 MiB. Text without separators is cut into
/// pieces of about two windows, but of no less than 4 KiB: small enough that shuffling them mixes the text,
/// large enough that few windows lose context.
BlockSizes block_sizes(int64_t seq_len);

/// All files end to end, cut into blocks of block_bytes. A cut moves forward to the next document of its
/// file. A compressed file, which cannot be entered in the middle, belongs as a whole to the block in which
/// it starts. So small files share a block and large ones have many, and the number of blocks follows from
/// file sizes alone, before anything is read.
class Corpus {
 public:
  /// Opens every token shard once, so that a damaged one is found at once. Throws FileError.
  Corpus(std::vector<DataFile> files, BlockSizes sizes);

  const std::vector<DataFile>& files() const { return files_; }
  const BlockSizes& sizes() const { return sizes_; }
  int64_t bytes() const { return bytes_; }
  int64_t blocks() const { return blocks_; }
  /// Tokenizers named by the shards, as (path, fingerprint).
  const std::vector<std::pair<std::string, std::string>>& fingerprints() const { return fingerprints_; }
  /// TokenShard::first_token() of the shards that have one, as (path, id).
  const std::vector<std::pair<std::string, int32_t>>& first_tokens() const { return first_tokens_; }

  /// The part of a block that lies in one file, before cuts are moved. Of a compressed file, the whole is
  /// read, whatever `end` says.
  struct Part {
    int32_t file;
    int64_t begin, end;
  };
  std::vector<Part> parts(int64_t block) const;
  /// False if all files are bare ids, which do not say where documents begin: a Document is then a piece.
  bool knows_documents() const;

  /// Line (from 1) of an offset in a file's decompressed content, for error messages: reads the file up to
  /// there.
  int64_t line_number(int32_t file, int64_t offset) const;

 private:
  int64_t block_begin(int64_t block) const;

  std::vector<DataFile> files_;
  std::vector<int64_t> starts_;  // of each file in the whole, and the end
  BlockSizes sizes_;
  int64_t bytes_ = 0, blocks_ = 1;
  std::vector<std::pair<std::string, std::string>> fingerprints_;
  std::vector<std::pair<std::string, int32_t>> first_tokens_;
};

/// The part of a token shard that belongs to a block: bytes [begin, end) of the file, and where its documents
/// start.
struct StoredPart {
  int64_t begin = 0, end = 0, token_bytes = 2;
  std::vector<int64_t> documents;  ///< or pieces, if long documents of files without a table are cut
  std::vector<bool> goes_on;       ///< by piece: Document::goes_on

  int64_t tokens() const { return (end - begin) / token_bytes; }
  int64_t end_of(size_t document) const {
    return document + 1 < documents.size() ? documents[document + 1] : end;
  }
};
/// Throws FileError.
StoredPart stored_part(const Corpus& corpus, const TokenShard& shard, const Corpus::Part& part);

/// Reads one block from its start. It is almost always one segment; a block with compressed files may have
/// several, each with two to three block_bytes of content.
class BlockReader {
 public:
  BlockReader(const Corpus& corpus, int64_t block) : corpus_(corpus), parts_(corpus.parts(block)) {}
  /// Overwrites `segment`. Throws FileError, of a system that fails after three attempts (attempts.h), or
  /// DataError.
  void next(Segment& segment);
  /// Whether a segment of this many bytes is full.
  static bool full(int64_t bytes, const BlockSizes& sizes) { return bytes >= 2 * sizes.block_bytes; }
  bool finished() const { return part_ == parts_.size(); }

 private:
  void append_uncompressed(Segment& segment, const Corpus::Part& part);
  void append_plain(Segment& segment, const Corpus::Part& part);
  void append_tokens(Segment& segment, const Corpus::Part& part);
  /// Returns false when the file has ended.
  bool append_compressed(Segment& segment, const Corpus::Part& part);
  void append_documents(Segment& segment, int32_t file, int64_t offset, size_t first);

  const Corpus& corpus_;
  std::vector<Corpus::Part> parts_;
  size_t part_ = 0;
  std::unique_ptr<ByteStream> stream_;  // of the compressed file being read
  std::string pending_;                 // decompressed, not yet given out
  int64_t offset_ = 0;                  // of pending_ in the content
  bool ended_ = false;
};

}  // namespace ottava::data
