#include "core/data/token_shard.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/round_up.h"
#include "core/text/counted.h"

namespace ottava::data {
namespace {

constexpr std::string_view kWhere = "data";
constexpr int64_t kCutSearch = 1 << 20;
constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};

template <class T>
T load(std::string_view bytes, size_t offset) {
  T value{};
  if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <class T>
std::vector<T> read_array(const File& file, int64_t count, int64_t offset) {
  std::vector<T> values(count);
  file.read_at(values.data(), values.size() * sizeof(T), offset);
  return values;
}

// Formats with a table of document starts. It may be larger than memory, so it is searched in the file.
class TableShard : public TokenShard {
 public:
  using TokenShard::TokenShard;
  std::vector<int64_t> document_starts(int64_t first, int64_t last) const override {
    int64_t from = lower_bound(first), to = lower_bound(last);
    std::vector<int64_t> starts = from < to ? starts_of(from, to) : std::vector<int64_t>{};
    for (size_t i = 0; i < starts.size(); ++i) {
      int64_t least = i == 0 ? first : starts[i - 1];
      if (starts[i] < least || starts[i] >= last || (starts[i] - begin_) % token_bytes_ != 0) {
        fail<FileError>(
            kWhere, "'{}': document {} starts at byte {}, expected {} to {}: the document table is damaged",
            file_.path(), from + i, starts[i], least, last);
      }
    }
    if (starts.empty() || starts[0] != first) starts.insert(starts.begin(), first);
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    return starts;
  }

 protected:
  /// Start bytes of documents [first, last).
  virtual std::vector<int64_t> starts_of(int64_t first, int64_t last) const = 0;
  int64_t next_document(int64_t offset) const override {
    int64_t d = lower_bound(offset);
    return d < documents_ ? std::clamp(starts_of(d, d + 1)[0], offset, end_) : end_;
  }
  // First document that starts at or after `offset`.
  int64_t lower_bound(int64_t offset) const {
    int64_t low = 0, high = documents_;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (starts_of(middle, middle + 1)[0] < offset) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  int64_t documents_ = 0;
};

class OttavaShard : public TableShard {
 public:
  explicit OttavaShard(File file, const ShardHeader& h) : TableShard(std::move(file), h.token_bytes) {
    begin_ = sizeof(ShardHeader);
    end_ = begin_ + h.tokens * token_bytes_;
    documents_ = h.documents;
    fingerprint_.assign(h.fingerprint, strnlen(h.fingerprint, sizeof h.fingerprint));
  }

 protected:
  std::vector<int64_t> starts_of(int64_t first, int64_t last) const override {
    std::vector<int64_t> starts = read_array<int64_t>(file_, last - first, round_up(end_, 8) + first * 8);
    for (int64_t& start : starts) {
      // Limited before it is multiplied; the caller reports what is out of order.
      if (start < 0 || start > tokens())
        fail<FileError>(kWhere, "'{}': document offset {} lies outside its {}: the table is damaged",
                        file_.path(), start, counted(tokens(), "token"));
      start = begin_ + start * token_bytes_;
    }
    return starts;
  }
};

/// Where in a Megatron .idx file something is: behind the header the lengths of all sequences (i32), where
/// each begins in the .bin file (i64), and the sequence with which each document begins (i64), ending with
/// the number of sequences. A byte per sequence may follow, its mode.
struct MegatronIndex {
  static constexpr int64_t kHeader = 34;
  int64_t sequences = 0, entries = 0;  ///< of the two tables of sequences, and of the table of documents
  int64_t token_bytes = 0;             ///< in the .bin file
  int64_t length_at(int64_t sequence) const { return kHeader + 4 * sequence; }
  int64_t pointer_at(int64_t sequence) const { return length_at(sequences) + 8 * sequence; }
  int64_t document_at(int64_t entry) const { return pointer_at(sequences) + 8 * entry; }
  int64_t size() const { return document_at(entries); }  ///< without modes
};

class MegatronShard : public TableShard {
 public:
  MegatronShard(File file, File index, const MegatronIndex& at)
      : TableShard(std::move(file), at.token_bytes), index_(std::move(index)), at_(at) {
    end_ = file_.size();
    documents_ = at.entries - 1;
  }

 protected:
  std::vector<int64_t> starts_of(int64_t first, int64_t last) const override {
    std::vector<int64_t> starts = read_array<int64_t>(index_, last - first, at_.document_at(first));
    int64_t low = starts.front(), high = starts.back();
    // A run of documents takes one read of the pointers between them.
    bool sane = low >= 0 && low <= high && high <= at_.sequences && std::ranges::is_sorted(starts);
    if (!sane)
      fail<FileError>(kWhere, "'{}': document table entries {} to {} are out of order or beyond {}",
                      index_.path(), first, last, counted(at_.sequences, "sequence"));
    std::vector<int64_t> bytes =
        read_array<int64_t>(index_, std::min(high + 1, at_.sequences) - low, at_.pointer_at(low));
    for (int64_t& start : starts) {
      int64_t pointer = start == at_.sequences ? end_ : bytes[start - low];
      if (pointer < 0 || pointer > end_)
        fail<FileError>(kWhere, "'{}': sequence {} points to byte {} of '{}', which has {}", index_.path(),
                        start, pointer, file_.path(), end_);
      start = pointer;
    }
    return starts;
  }

 private:
  File index_;
  MegatronIndex at_;
};

constexpr uint32_t kNoDelimiter = UINT32_MAX;

class LlmcShard : public TokenShard {
 public:
  LlmcShard(File file, int64_t header_bytes, int64_t token_bytes, uint32_t delimiter)
      : TokenShard(std::move(file), token_bytes), delimiter_(delimiter) {
    begin_ = header_bytes;
    end_ = file_.size();
  }
  std::optional<int32_t> first_token() const override {
    if (delimiter_ == kNoDelimiter) return {};
    return static_cast<int32_t>(delimiter_);
  }
  std::vector<int64_t> document_starts(int64_t first, int64_t last) const override {
    std::vector<int64_t> starts{first};
    scan(first, last, [&](int64_t at) {
      if (at != first) starts.push_back(at);
      return true;
    });
    return starts;
  }

 protected:
  int64_t next_document(int64_t offset) const override {
    int64_t found = end_;
    scan(offset, std::min(offset + kCutSearch + token_bytes_, end_), [&](int64_t at) {
      found = at;
      return false;
    });
    return found;
  }

 private:
  template <class Visit>
  void scan(int64_t first, int64_t last, Visit&& visit) const {
    if (delimiter_ == kNoDelimiter) return;
    std::string bytes;
    append_range(file_, first, last - first, bytes);
    for (size_t at = 0; at + static_cast<size_t>(token_bytes_) <= bytes.size(); at += token_bytes_) {
      uint32_t id = token_bytes_ == 2 ? load<uint16_t>(bytes, at) : load<uint32_t>(bytes, at);
      if (id == delimiter_ && !visit(first + at)) return;
    }
  }
  uint32_t delimiter_;
};

struct LlmcKind {
  int32_t magic, version;
  int64_t token_bytes;
  uint32_t delimiter;  // starts every document: <|endoftext|> of GPT-2, <|begin_of_text|> of Llama 3
};
constexpr std::array<LlmcKind, 2> kLlmcKinds{{{20240520, 1, 2, 50256}, {20240801, 7, 4, 128000}}};

const LlmcKind* llmc_kind(std::string_view head) {
  for (const LlmcKind& kind : kLlmcKinds) {
    if (head.size() >= 4 && load<int32_t>(head, 0) == kind.magic) return &kind;
  }
  return nullptr;
}

std::unique_ptr<TokenShard> open_llmc(File file) {
  std::string head;
  append_range(file, 0, 1024, head);
  const LlmcKind* kind = llmc_kind(head);
  if (!kind) fail<FileError>(kWhere, "'{}' lacks llm.c's magic (20240520 or 20240801)", file.path());
  if (head.size() < 1024)
    fail<FileError>(kWhere, "'{}' is truncated: {}, llm.c's header has 1024", file.path(),
                    counted(head.size(), "byte"));
  int32_t version = load<int32_t>(head, 4);
  if (version != kind->version) {
    fail<FileError>(kWhere, "'{}' has llm.c version {}, expected {} for magic {}", file.path(), version,
                    kind->version, kind->magic);
  }
  int64_t tokens = load<int32_t>(head, 8), expected = 1024 + tokens * kind->token_bytes;
  if (tokens < 0 || expected != file.size()) {
    fail<FileError>(kWhere, "'{}' has {}, expected {} for {} of {} bytes: it is truncated or damaged",
                    file.path(), counted(file.size(), "byte"), expected, counted(tokens, "token"),
                    kind->token_bytes);
  }
  return std::make_unique<LlmcShard>(std::move(file), 1024, kind->token_bytes, kind->delimiter);
}

// Whether every second id is as small as the upper half of an id of twice the width would be, while a quarter
// of those before them are larger. Ids of a text are never like that; those of an alphabet of four are small
// on both sides. Looks at the beginning, the middle and the end.
bool looks_twice_as_wide(const File& file, int64_t token_bytes) {
  constexpr int64_t kSample = 4096, kFewest = 32, kUpperLimit = 4;  // of vocabularies up to 262,144
  const int64_t pair = 2 * token_bytes, pairs = file.size() / pair, count = std::min(pairs, kSample / 2);
  if (file.size() % pair != 0 || pairs < kFewest / 2) return false;
  int64_t looked_at = 0, larger = 0;
  for (int64_t first : {int64_t{0}, (pairs - count) / 2, pairs - count}) {
    std::string bytes;
    append_range(file, first * pair, count * pair, bytes);
    for (size_t at = 0; at + static_cast<size_t>(pair) <= bytes.size(); at += pair) {
      uint32_t lower = 0, upper = 0;
      std::memcpy(&lower, bytes.data() + at, token_bytes);  // little endian, as the formats are
      std::memcpy(&upper, bytes.data() + at + token_bytes, token_bytes);
      if (upper >= kUpperLimit) return false;
      larger += lower >= kUpperLimit;
      ++looked_at;
    }
  }
  return 4 * larger >= looked_at;
}

// A header would otherwise be trained on as ids.
void refuse_header(const File& file) {
  std::string head;
  append_range(file, 0, 16, head);
  if (head.starts_with("\x93NUMPY"))
    fail<FileError>(
        kWhere, "'{}' is a NumPy array with a header, expected nothing but ids: save it with ndarray.tofile",
        file.path());
  if (head.starts_with(ShardHeader::kMagic) || llmc_kind(head))
    fail<FileError>(kWhere, "'{}' is a token shard with a header of its own: leave its format ({}) at auto",
                    file.path(), kFormatKey);
}

// Nothing but ids. Whether one of them separates documents is not known.
std::unique_ptr<TokenShard> open_bare(File file, int64_t token_bytes) {
  refuse_header(file);
  if (file.size() % token_bytes != 0) {
    fail<FileError>(kWhere, "'{}' has {}, no whole number of tokens of {} bytes: is its format ({}) right?",
                    file.path(), counted(file.size(), "byte"), token_bytes, kFormatKey);
  }
  if (looks_twice_as_wide(file, token_bytes)) {
    fail<FileError>(kWhere, "'{}' looks like tokens of {} bytes, not {}, as each second one is nearly 0: {}",
                    file.path(), 2 * token_bytes, token_bytes,
                    token_bytes == 2 ? "tokens_u32?" : "save them as 32-bit ids");
  }
  return std::make_unique<LlmcShard>(std::move(file), 0, token_bytes, kNoDelimiter);
}

// As far as its own file can prove it right.
MegatronIndex read_megatron_index(const File& index) {
  std::string head;
  append_range(index, 0, MegatronIndex::kHeader, head);
  if (!head.starts_with(kMegatronMagic))
    fail<FileError>(kWhere, "'{}' does not start with MMIDIDX: it is no Megatron index", index.path());
  if (head.size() < static_cast<size_t>(MegatronIndex::kHeader))
    fail<FileError>(kWhere, "'{}' is truncated: {}", index.path(), counted(head.size(), "byte"));
  if (auto version = load<uint64_t>(head, 9); version != 1) {
    fail<FileError>(kWhere, "'{}' has Megatron index version {}, expected 1", index.path(), version);
  }
  int dtype = static_cast<uint8_t>(head[17]);
  if (dtype != 8 && dtype != 4) {
    fail<FileError>(kWhere, "'{}' stores tokens of Megatron type {}, expected 8 (uint16) or 4 (int32)",
                    index.path(), dtype);
  }
  uint64_t sequences = load<uint64_t>(head, 18), entries = load<uint64_t>(head, 26), limit = index.size();
  // Both counts are bounded before they are multiplied.
  const bool fits = sequences <= limit / 12 && entries <= limit / 8 && entries >= 1;
  MegatronIndex at;
  if (fits) at = {static_cast<int64_t>(sequences), static_cast<int64_t>(entries), dtype == 8 ? 2 : 4};
  const uint64_t size = at.size();
  if (!fits || (limit != size && limit != size + sequences)) {
    fail<FileError>(kWhere, "'{}' has {}, which does not fit its {} and {}: it is truncated or damaged",
                    index.path(), counted(limit, "byte"), counted(sequences, "sequence"),
                    counted(entries, "document entry", "document entries"));
  }
  const int64_t last = read_array<int64_t>(index, 1, at.document_at(at.entries - 1))[0];
  if (last != at.sequences) {
    fail<FileError>(kWhere, "'{}': its document table ends with {}, expected its {}: it is damaged",
                    index.path(), last, counted(at.sequences, "sequence"));
  }
  return at;
}

std::unique_ptr<TokenShard> open_megatron(File file) {
  File index = File::open_for_reading(megatron_idx(file.path()));
  const MegatronIndex at = read_megatron_index(index);
  int64_t described = 0;
  if (at.sequences > 0) {
    int64_t pointer = read_array<int64_t>(index, 1, at.pointer_at(at.sequences - 1))[0];
    int32_t length = read_array<int32_t>(index, 1, at.length_at(at.sequences - 1))[0];
    described = pointer < 0 || pointer > file.size() || length < 0 ? -1 : pointer + length * at.token_bytes;
  }
  if (described != file.size()) {
    fail<FileError>(kWhere,
                    "'{}' has {}, '{}' describes {}: the pair does not belong together or is truncated",
                    file.path(), counted(file.size(), "byte"), index.path(), described);
  }
  return std::make_unique<MegatronShard>(std::move(file), std::move(index), at);
}

}  // namespace

ShardHeader read_shard_header(const File& file) {
  ShardHeader h{};
  if (file.size() < static_cast<int64_t>(sizeof h)) {
    fail<FileError>(kWhere, "'{}' is truncated: {}, the header has {}", file.path(),
                    counted(file.size(), "byte"), sizeof h);
  }
  file.read_at(&h, sizeof h, 0);
  if (std::string_view(h.magic, 8) != ShardHeader::kMagic)
    fail<FileError>(kWhere, "'{}' is no ottava shard", file.path());
  if (h.version != ShardHeader::kVersion) {
    fail<FileError>(kWhere, "'{}' has shard version {}, expected {}; prepare it again", file.path(),
                    h.version, ShardHeader::kVersion);
  }
  constexpr uint64_t kMost = uint64_t{1} << 56;  // whose sizes in bytes are no larger than a number can be
  if (XXH64(&h, offsetof(ShardHeader, header_checksum), 0) != h.header_checksum ||
      (h.token_bytes != 2 && h.token_bytes != 4) || h.tokens > kMost || h.documents > kMost) {
    fail<FileError>(kWhere, "'{}' has a damaged header; prepare it again", file.path());
  }
  const uint64_t tokens_end = (sizeof h + h.tokens * h.token_bytes + 7) / 8 * 8;
  const uint64_t expected = tokens_end + 8 * (h.documents + 1);
  if (static_cast<uint64_t>(file.size()) != expected) {
    fail<FileError>(kWhere, "'{}' has {}, expected {} for {} of {} bytes and {}: it is truncated or damaged",
                    file.path(), counted(file.size(), "byte"), expected, counted(h.tokens, "token"),
                    h.token_bytes, counted(h.documents, "document"));
  }
  return h;
}

std::string megatron_idx(const std::string& bin) { return bin.substr(0, bin.size() - 4) + ".idx"; }

std::optional<Format> sniff_shard(const std::string& path, std::string_view head) {
  if (head.starts_with(ShardHeader::kMagic)) return Format::ottava_shard;
  if (!path.ends_with(".bin")) return std::nullopt;
  std::error_code error;
  if (std::filesystem::exists(megatron_idx(path), error)) return Format::megatron_shard;
  if (llmc_kind(head)) return Format::llmc_shard;
  return std::nullopt;
}

std::unique_ptr<TokenShard> TokenShard::open(const std::string& path, Format format) {
  File file = File::open_for_reading(path);
  if (format == Format::llmc_shard) return open_llmc(std::move(file));
  if (format == Format::tokens_u16) return open_bare(std::move(file), 2);
  if (format == Format::tokens_u32) return open_bare(std::move(file), 4);
  if (format == Format::megatron_shard) return open_megatron(std::move(file));
  ShardHeader header = read_shard_header(file);
  return std::make_unique<OttavaShard>(std::move(file), header);
}

int64_t TokenShard::cut(int64_t offset) const {
  if (offset <= begin_) return begin_;
  if (offset >= end_) return end_;
  int64_t aligned = begin_ + round_up(offset - begin_, token_bytes_);
  int64_t document = next_document(aligned);
  if ((document - begin_) % token_bytes_ != 0) {
    fail<FileError>(
        kWhere,
        "'{}': a document starts at byte {}, between two tokens of {} bytes: the document table is damaged",
        file_.path(), document, token_bytes_);
  }
  return document - aligned > kCutSearch ? aligned : document;
}

}  // namespace ottava::data
