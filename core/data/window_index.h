#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/data/corpus.h"
#include "core/data/text_encoder.h"

namespace ottava::data {

/// What tokenizing one segment gave. It does not depend on the order of documents, so it holds for every
/// epoch.
struct SegmentCount {
  int64_t windows = 0, documents = 0, tokens = 0, dropped = 0, bytes = 0, too_long = 0;
};

/// What a WindowIndex does with its file.
enum class IndexAccess {
  read_write,  ///< keeps the file in the folder up to date
  read_only,   ///< uses it where it is there (all ranks but one)
};

/// What is known of each block: the counts of its segments. It is filled as blocks are tokenized, and kept in
/// a file so that a resumed run need not tokenize what came before. Safe to use from several threads.
class WindowIndex {
 public:
  /// `key` is a hash of everything on which the counts depend. Reads `windows-<key>.idx` in the folder; a
  /// file that is damaged, cannot be read or is of another key is reported to the log and not used. With an
  /// empty `folder` everything stays in memory. Throws FileError if the folder cannot be made or written.
  WindowIndex(std::string folder, uint64_t key, int64_t blocks, IndexAccess access = IndexAccess::read_write);

  /// All segments of a block; nothing while they are not known.
  std::optional<std::vector<SegmentCount>> find(int64_t block) const;
  void set(int64_t block, std::vector<SegmentCount> segments);
  /// Number of known blocks.
  int64_t known() const;
  bool complete() const { return known() == blocks_; }
  /// Sum over known blocks.
  SegmentCount total() const;

  /// Takes in what other processes have written meanwhile (as the constructor does) and, if that leaves
  /// something to add, replaces the file by rename, so that readers see the old one or the new one. Does
  /// nothing with read_only. Throws FileError.
  void save();
  const std::string& path() const { return path_; }

 private:
  /// Warns of a file that is there and cannot be used.
  void merge_from_file();
  /// False, and nothing is taken in, if `bytes` are not a file of this key.
  bool merge(const std::string& bytes);
  std::string serialize() const;

  std::string path_;
  uint64_t key_;
  int64_t blocks_;
  IndexAccess access_;
  std::mutex saving_;  ///< one save at a time: an older state must not come last
  mutable std::mutex mutex_;
  std::vector<std::vector<SegmentCount>> counts_;  // empty: not known
  int64_t known_ = 0, saved_ = 0;
  SegmentCount total_;
};

/// What reading a block of token shards would give, from the shards' tables alone (llm.c's have none: their
/// tokens are read); nothing for a block that holds any text. Throws FileError.
std::optional<std::vector<SegmentCount>> count_stored(const Corpus& corpus, int64_t block, int64_t seq_len);

/// Hash of all that decides which window is where: files, how they are cut, the key of JSON lines, tokenizer,
/// BOS and EOS, seq_len. With Identity::content, equal copies of the data have equal hashes; `files` adds
/// paths and modification times, those of Megatron's tables too, for a cache on this machine.
struct IndexKey {
  const Corpus& corpus;
  const TextEncoder& encoder;
  std::string text_key;
  int64_t seq_len = 0;
  enum class Identity { content, files };
  uint64_t hash(Identity of) const;
};

}  // namespace ottava::data
