#include "core/data/corpus.h"

#include <algorithm>

#include "core/data/text_documents.h"
#include "core/error.h"
#include "core/io/attempts.h"
#include "core/io/utf8.h"

namespace ottava::data {
namespace {

constexpr std::string_view kWhere = "data";
constexpr int64_t kReadBytes = 256 << 10;

[[noreturn]] void fail_long_line(const DataFile& file, int64_t offset) {
  fail<DataError>(kWhere,
                  "'{}' has a line longer than {} MiB at byte {}: is it JSON lines, one object per line?",
                  file.path, kMaxLineBytes >> 20, offset);
}

void check_unchanged(const DataFile& entry, const File& file) {
  if (file.size() == entry.bytes) return;
  fail<FileError>(kWhere,
                  "'{}' changed while it was being read: {} bytes, {} when the run started; restore it, or "
                  "start a new run",
                  entry.path, file.size(), entry.bytes);
}

// The file may have been truncated since it was opened.
void append_whole(const DataFile& entry, const File& file, int64_t begin, int64_t end, std::string& out) {
  if (append_range(file, begin, end - begin, out) != end - begin) check_unchanged(entry, file);
}

// Behind the next line end, or the file's end. Nothing that was looked at is kept, or looked at twice: every
// block that begins within a long line begins with this search.
int64_t next_line(const DataFile& entry, const File& file, int64_t offset) {
  std::string bytes;
  for (int64_t at = offset; at < file.size(); at += std::ssize(bytes)) {
    if (at - offset > static_cast<int64_t>(kMaxLineBytes)) fail_long_line(entry, offset);
    bytes.clear();
    if (append_range(file, at, kReadBytes, bytes) == 0) break;  // the file has become shorter
    if (const size_t end = bytes.find('\n'); end != std::string::npos)
      return at + static_cast<int64_t>(end) + 1;
  }
  return file.size();
}

// Moves a nominal cut forward to the start of a document.
int64_t cut(const DataFile& entry, const File& file, int64_t offset) {
  if (offset <= 0) return 0;
  if (entry.format == Format::json_lines) return next_line(entry, file, offset);
  std::string bytes;
  for (int64_t want = kReadBytes; offset < file.size(); want *= 2) {
    int64_t read = std::ssize(bytes);
    append_range(file, offset + read, want - read, bytes);
    bool ended = offset + std::ssize(bytes) >= file.size();
    if (auto distance = find_cut(entry.format, bytes, ended)) return offset + *distance;
  }
  return file.size();
}

}  // namespace

BlockSizes block_sizes(int64_t seq_len) {
  return {.block_bytes = std::max<int64_t>(4 << 20, 512 * seq_len),
          .max_text_bytes = std::max<int64_t>(4 << 10, 8 * seq_len)};
}

Corpus::Corpus(std::vector<DataFile> files, BlockSizes sizes)
    : files_(std::move(files)), starts_{0}, sizes_(sizes) {
  for (const DataFile& file : files_) {
    bytes_ += file.bytes;
    // A long compressed file is one block whatever its length, so it counts as one block long.
    bool whole = file.compression != Compression::none;
    starts_.push_back(starts_.back() + (whole ? std::min(file.bytes, sizes_.block_bytes) : file.bytes));
    if (!is_tokenized(file.format)) continue;
    const std::unique_ptr<TokenShard> shard =
        in_three_attempts({.complaint = fmt::format("'{}' could not be read", file.path)},
                          [&] { return TokenShard::open(file.path, file.format); });
    if (!shard->fingerprint().empty()) fingerprints_.emplace_back(file.path, shard->fingerprint());
    if (const auto id = shard->first_token()) first_tokens_.emplace_back(file.path, *id);
  }
  blocks_ = std::max<int64_t>((starts_.back() + sizes_.block_bytes / 2) / sizes_.block_bytes, 1);
}

int64_t Corpus::block_begin(int64_t block) const {
  return starts_.back() / blocks_ * block + std::min(block, starts_.back() % blocks_);
}

std::vector<Corpus::Part> Corpus::parts(int64_t block) const {
  int64_t begin = block_begin(block), end = block_begin(block + 1);
  std::vector<Part> parts;
  size_t f = std::ranges::upper_bound(starts_, begin) - starts_.begin() - 1;
  for (; f < files_.size() && starts_[f] < end; ++f) {
    int64_t first = std::max(begin - starts_[f], int64_t{0}),
            last = std::min(end - starts_[f], files_[f].bytes);
    bool compressed = files_[f].compression != Compression::none;
    if (!compressed || first == 0) parts.push_back({static_cast<int32_t>(f), first, last});
  }
  return parts;
}

bool Corpus::knows_documents() const { return !std::ranges::all_of(files_, is_bare, &DataFile::format); }

int64_t Corpus::line_number(int32_t file, int64_t offset) const {
  const DataFile& entry = files_[file];
  std::unique_ptr<ByteStream> stream = open_stream(entry.path, entry.compression);
  int64_t line = 1;
  for (std::string bytes; offset > 0; bytes.clear()) {
    int64_t got = stream->append(bytes, std::min(offset, kReadBytes));
    if (got == 0) break;
    line += std::ranges::count(bytes, '\n');
    offset -= got;
  }
  return line;
}

void BlockReader::next(Segment& segment) {
  segment.bytes.clear();
  segment.documents.clear();
  while (!finished() && !full(std::ssize(segment.bytes), corpus_.sizes())) {
    const Corpus::Part& part = parts_[part_];
    const DataFile& file = corpus_.files()[part.file];
    const bool is_compressed = file.compression != Compression::none;
    if (!is_compressed) append_uncompressed(segment, part);
    if (!is_compressed || !append_compressed(segment, part)) ++part_;
  }
}

// Opens the file anew for each attempt: what was opened may stay unreadable.
void BlockReader::append_uncompressed(Segment& segment, const Corpus::Part& part) {
  const DataFile& file = corpus_.files()[part.file];
  const size_t bytes = segment.bytes.size(), documents = segment.documents.size();
  in_three_attempts({.complaint = fmt::format("'{}' could not be read", file.path)}, [&] {
    segment.bytes.resize(bytes);
    segment.documents.erase(segment.documents.begin() + documents, segment.documents.end());
    is_tokenized(file.format) ? append_tokens(segment, part) : append_plain(segment, part);
  });
}

void BlockReader::append_plain(Segment& segment, const Corpus::Part& part) {
  const DataFile& entry = corpus_.files()[part.file];
  File file = File::open_for_reading(entry.path);
  check_unchanged(entry, file);
  const int64_t begin = cut(entry, file, part.begin);
  const bool is_within_line = entry.format == Format::json_lines && begin > part.end;  // the whole block
  const int64_t end = is_within_line ? begin : cut(entry, file, part.end);
  size_t first = segment.bytes.size();
  append_whole(entry, file, begin, end, segment.bytes);
  append_documents(segment, part.file, begin, first);
}

StoredPart stored_part(const Corpus& corpus, const TokenShard& shard, const Corpus::Part& part) {
  const DataFile& entry = corpus.files()[part.file];
  check_unchanged(entry, shard.file());
  StoredPart stored{
      .begin = shard.cut(part.begin), .end = shard.cut(part.end), .token_bytes = shard.token_bytes()};
  if (stored.begin >= stored.end) return {.token_bytes = stored.token_bytes};
  stored.documents = shard.document_starts(stored.begin, stored.end);
  stored.goes_on.resize(stored.documents.size(), false);
  if (entry.format == Format::ottava_shard || entry.format == Format::megatron_shard) return stored;
  // Without a document table, a long document is treated as text without delimiters and cut as such.
  int64_t longest = std::max<int64_t>(corpus.sizes().max_text_bytes / 4, 1) * stored.token_bytes;
  std::vector<int64_t> pieces;
  stored.goes_on.clear();
  for (size_t d = 0; d < stored.documents.size(); ++d) {
    for (int64_t at = stored.documents[d]; at < stored.end_of(d); at += longest) {
      pieces.push_back(at);
      stored.goes_on.push_back(at > stored.documents[d]);
    }
  }
  stored.documents = std::move(pieces);
  return stored;
}

void BlockReader::append_tokens(Segment& segment, const Corpus::Part& part) {
  const DataFile& entry = corpus_.files()[part.file];
  std::unique_ptr<TokenShard> shard = TokenShard::open(entry.path, entry.format);
  StoredPart stored = stored_part(corpus_, *shard, part);
  auto kind = stored.token_bytes == 2 ? Document::Kind::u16_tokens : Document::Kind::u32_tokens;
  int64_t shift = std::ssize(segment.bytes) - stored.begin;
  append_whole(entry, shard->file(), stored.begin, stored.end, segment.bytes);
  for (size_t d = 0; d < stored.documents.size(); ++d) {
    const int64_t begin = stored.documents[d];
    segment.documents.push_back(
        {kind, part.file, begin + shift, stored.end_of(d) + shift, begin, stored.goes_on[d]});
  }
}

bool BlockReader::append_compressed(Segment& segment, const Corpus::Part& part) {
  const DataFile& entry = corpus_.files()[part.file];
  if (!stream_) {
    in_three_attempts({.complaint = fmt::format("'{}' could not be opened", entry.path)}, [&] {
      check_unchanged(entry, File::open_for_reading(entry.path));
      stream_ = open_stream(entry.path, entry.compression);
    });
    pending_.clear();
    offset_ = 0;
    ended_ = false;
  }
  size_t wanted = corpus_.sizes().block_bytes, length = 0, looked = 0;
  for (;;) {
    if (pending_.size() > wanted || ended_) {
      size_t nominal = std::min(wanted, pending_.size());
      auto distance = find_cut(entry.format, std::string_view(pending_).substr(nominal), ended_, looked);
      if (distance) {
        length = nominal + *distance;
        break;
      }
      looked = pending_.size() - nominal;
    }
    if (pending_.size() > wanted + kMaxLineBytes) fail_long_line(entry, offset_ + wanted);
    ended_ = stream_->append(pending_, kReadBytes) == 0;
  }
  size_t first = segment.bytes.size();
  segment.bytes.append(pending_, 0, length);
  pending_.erase(0, length);
  append_documents(segment, part.file, offset_, first);
  offset_ += length;
  if (pending_.empty() && !ended_) ended_ = stream_->append(pending_, kReadBytes) == 0;
  bool more = !(ended_ && pending_.empty());
  if (!more) stream_.reset();
  return more;
}

void BlockReader::append_documents(Segment& segment, int32_t file, int64_t offset, size_t first) {
  Format format = corpus_.files()[file].format;
  if (offset == 0 && std::string_view(segment.bytes).substr(first).starts_with(kByteOrderMark)) {
    first += kByteOrderMark.size();
    offset += std::ssize(kByteOrderMark);
  }
  auto kind = format == Format::json_lines ? Document::Kind::json_line : Document::Kind::text;
  auto add = [&](size_t begin, size_t end) {
    int64_t from = first + begin, to = first + end;
    segment.documents.push_back({kind, file, from, to, offset + static_cast<int64_t>(begin)});
  };
  split_documents(format, std::string_view(segment.bytes).substr(first), corpus_.sizes().max_text_bytes, add);
}

}  // namespace ottava::data
