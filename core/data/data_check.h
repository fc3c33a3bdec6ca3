#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/data/packing.h"

namespace ottava::data {

/// What a look through the data has found so far. A record is one line of JSON lines.
struct DataCheck {
  int64_t bytes = 0;        ///< looked at, decompressed
  int64_t text_bytes = 0;   ///< of the documents in them, without what stores them in JSON
  int64_t documents = 0;    ///< in them; pieces if all files are bare ids (Corpus::knows_documents())
  bool is_whole = false;    ///< all of the data has been looked at
  int64_t bad_records = 0;  ///< not an object with the text; only where these are to be skipped
  std::string first_bad_record = {};
  int64_t ill_formed = 0;  ///< documents with bytes that are not UTF-8, which are kept as they are
  std::string first_ill_formed = {};
};

/// Looks through the data in blocks spread over the corpus: parses records, compares the ids of shards with
/// the vocabulary, checks UTF-8. Text is not tokenized.
class DataScan {
 public:
  DataScan(const Corpus& corpus, TextEncoder encoder, std::string text_key, BadRecords bad_records);
  ~DataScan();

  /// Continues for about `seconds`, but at least for one segment. Throws DataError as
  /// DocumentEncoder::append() does.
  DataCheck look(double seconds);
  /// Continues in a thread of its own, with the lowest priority and at work for at most a tenth of the time,
  /// so that training does not notice. If the system allows no more threads, warns and does nothing.
  void look_at_the_rest();

  struct Progress {
    DataCheck found;
    std::optional<std::string> problem;  ///< what look() would have thrown; it ended the scan
  };
  /// Progress of look_at_the_rest(); may be called from any thread.
  Progress progress() const;

 private:
  void look_at_segment(DataCheck& check);
  void work();

  const Corpus& corpus_;
  DocumentEncoder encoder_;
  int64_t stride_, block_ = 0;  // the block_-th in the order of the scan
  std::optional<BlockReader> reader_;
  Segment segment_;
  std::string scratch_;
  mutable std::mutex mutex_;  // guards what follows
  Progress progress_;
  bool stopping_ = false;
  std::condition_variable stop_;
  std::thread thread_;  // last member: it uses the others
};

}  // namespace ottava::data
