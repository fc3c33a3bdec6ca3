#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/data_check.h"
#include "core/data/data_file.h"
#include "core/data/order.h"
#include "core/data/packing.h"
#include "core/data/text_encoder.h"
#include "core/data/window_index.h"

namespace ottava::data {

/// What a TokenLoader reads, and how.
struct LoaderOptions {
  std::vector<std::string> sources;   ///< files, folders, globs, @lists: core/data/data_file.h
  std::optional<Format> format = {};  ///< of all sources; absent: each file's own
  LeavesOut leaves_out = {};          ///< of sources that are folders or globs
  std::string text_key = "text";      ///< of JSON lines
  BadRecords bad_records = BadRecords::error;
  TextEncoder encoder;
  int64_t seq_len = 0;
  std::string seq_len_key = "training.seq_len";  ///< what messages call it
  uint64_t seed = 0;
  Order order = Order::shuffled;  ///< sequential for validation: file order, the same in every epoch
  std::string index_folder;       ///< empty: nothing is kept
  IndexAccess index_access = IndexAccess::read_write;
  int threads = 1;   ///< for tokenizing
  int prefetch = 1;  ///< segments kept ready beyond those in work: about 4 MiB of tokens each for English
  std::optional<int64_t> block_bytes, max_text_bytes;  ///< default: block_sizes(seq_len), core/data/corpus.h
};

/// Statistics of what this loader has gone through; a restarted one starts from zero.
struct DataStats {
  int64_t documents = 0, tokens = 0, bytes = 0;  ///< of finished segments of blocks
  int64_t dropped_tokens = 0;  ///< in partial windows at ends of segments, or in documents that are too long
  int64_t too_long = 0;        ///< conversations longer than a window, left out; of segments begun, each once
  int64_t bad_records = 0;     ///< left out, also of blocks that are being read ahead; each once
  std::string first_bad_record = {};  ///< what was wrong with it
  int64_t joined_completions = 0;     ///< DocumentEncoder::joined_completions()
  double epochs = 0;                  ///< position: 1.5 is half through the second pass
  double seconds_waited = 0;          ///< that read() waited for data
  int64_t buffer_bytes = 0;           ///< held now for tokens that are ready
};

/// Where read() writes. Each is [count, seq_len].
struct TokenBatch {
  int32_t* inputs = nullptr;
  int32_t* targets = nullptr;          ///< inputs shifted by one; kNoTarget where the loss does not count
  int32_t* document_starts = nullptr;  ///< may be null: where the token's document starts within its sequence
};

/// Training samples by number. Sample s is a window of seq_len + 1 tokens; s counts through all windows of
/// all blocks of epoch 0 in that epoch's order, then of epoch 1, and so on. The mapping depends only on
/// files, tokenizer, seq_len and seed, not on ranks, threads or where reading began. So the position of a run
/// is one number, and any rank may read any samples. Reading forwards is prefetched. Reading elsewhere costs
/// tokenizing the earlier blocks of text whose window counts are not yet known; blocks of token shards are
/// counted by their tables (llm.c's, which have none, by reading them).
class TokenLoader {
 public:
  /// Looks at every file but reads and tokenizes no text. Throws DataError (nothing to train on, a shard made
  /// with another tokenizer), FileError (missing, unreadable, damaged header, unwritable index folder),
  /// ConfigError (bad options).
  explicit TokenLoader(LoaderOptions options);
  /// Saves the index.
  ~TokenLoader();

  /// Starts tokenizing for a first read() of this sample, without waiting.
  void start(int64_t first_sample);
  /// Writes samples [first_sample, first_sample + count) to `out`. One thread at a time. Throws what reading
  /// and tokenizing throw, and DataError if a whole epoch gives no window.
  void read(int64_t first_sample, int64_t count, const TokenBatch& out);

  /// Windows per epoch; known once every block has been tokenized, in this run or an earlier one.
  std::optional<int64_t> samples_per_epoch() const;
  /// The same, after tokenizing every block of text that is not known yet. Throws as read() does.
  int64_t count_samples();
  /// An estimate, from what is known and the sizes of the files; if nothing is known, waits for one segment
  /// to be tokenized. Throws as read() does.
  double estimate_samples();
  DataStats stats() const;
  /// Counts of an epoch, as far as its blocks are known.
  SegmentCount known() const;
  const LoaderOptions& options() const;
  const Corpus& corpus() const;
  /// A look through this loader's data, with counts of its own.
  DataScan& scan();
  /// Equal on two machines if tokenizer, seq_len and what is sampled of their copies of the data
  /// (DataFile::content) are equal. Ranks and resumed runs compare it.
  uint64_t fingerprint() const;
  /// version_of() the files, as they were when this was first called.
  const std::string& version();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ottava::data
