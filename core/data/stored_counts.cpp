#include <algorithm>

#include "core/data/window_index.h"
#include "core/io/attempts.h"

namespace ottava::data {

std::optional<std::vector<SegmentCount>> count_stored(const Corpus& corpus, int64_t block, int64_t seq_len) {
  std::vector<SegmentCount> segments;
  bool full = true;
  for (const Corpus::Part& part : corpus.parts(block)) {
    const DataFile& file = corpus.files()[part.file];
    if (!is_tokenized(file.format)) return std::nullopt;
    const StoredPart stored = in_three_attempts(
        {.complaint = fmt::format("'{}' could not be read", file.path)},
        [&] { return stored_part(corpus, *TokenShard::open(file.path, file.format), part); });
    if (full) segments.emplace_back();
    SegmentCount& count = segments.back();
    count.tokens += stored.tokens();
    count.documents += std::ranges::count(stored.goes_on, false);
    count.bytes += stored.end - stored.begin;
    full = BlockReader::full(count.bytes, corpus.sizes());
  }
  // A block that has only the middle of a compressed file has one empty segment.
  if (segments.empty()) segments.emplace_back();
  for (SegmentCount& count : segments) {
    count.windows = count.tokens / (seq_len + 1);
    count.dropped = count.tokens % (seq_len + 1);
  }
  return segments;
}

}  // namespace ottava::data
