#include "core/data/packing.h"

#include <algorithm>
#include <cstring>

#include "core/data/chat/chat_encoder.h"
#include "core/data/chat/masked_token.h"
#include "core/data/json_line.h"
#include "core/data/shard_writer.h"
#include "core/error.h"

namespace ottava::data {
namespace {

constexpr std::string_view kWhere = "data";

}  // namespace

DocumentEncoder::DocumentEncoder(const Corpus& corpus, TextEncoder encoder, std::string text_key,
                                 BadRecords bad_records)
    : corpus_(corpus),
      encoder_(std::move(encoder)),
      text_key_(std::move(text_key)),
      bad_records_(bad_records) {
  if (encoder_.fingerprint.empty()) return;
  for (const auto& [path, fingerprint] : corpus.fingerprints()) {
    if (fingerprint == shard_fingerprint(encoder_.fingerprint)) continue;
    fail<DataError>(
        kWhere,
        "'{}' was prepared with tokenizer {}, this run uses {}; prepare it again or change the tokenizer",
        path, fingerprint, encoder_.fingerprint);
  }
}

const std::string& DocumentEncoder::path(const Document& document) const {
  return corpus_.files()[document.file].path;
}

namespace {

std::string_view bytes_of(const Segment& segment, const Document& document) {
  return std::string_view(segment.bytes).substr(document.begin, document.end - document.begin);
}

bool is_text(const Document& document) {
  return document.kind == Document::Kind::text || document.kind == Document::Kind::json_line;
}

}  // namespace

std::string DocumentEncoder::place(const Document& document) const {
  if (document.kind == Document::Kind::json_line)
    return fmt::format("'{}' line {}", path(document), corpus_.line_number(document.file, document.offset));
  return fmt::format("'{}', document at byte {}", path(document), document.offset);
}

std::optional<std::string_view> DocumentEncoder::text_of(const Segment& segment, const Document& document,
                                                         std::string& scratch) const {
  const std::string_view bytes = bytes_of(segment, document);
  if (document.kind == Document::Kind::text) return bytes;
  scratch.clear();
  const std::optional<JsonProblem> problem = append_json_string(bytes, text_key_, scratch);
  if (!problem) return scratch;
  refuse(segment, document, fmt::format(", column {}", problem->column), problem->what);
  return std::nullopt;
}

// Ends the run, or counts the document among those that are left out.
void DocumentEncoder::refuse(const Segment& segment, const Document& document, std::string_view column,
                             std::string_view problem) const {
  // Finding the line means reading the file up to there, so it is done only for the one that is shown.
  const bool is_shown = bad_records_ == BadRecords::error || bad_records() == 0;
  const std::string what = is_shown ? fmt::format("{}{}: {}", place(document), column, problem) : "";
  if (bad_records_ == BadRecords::error) fail<DataError>(kWhere, "{}", what);
  std::lock_guard guard(mutex_);
  if (skipped_.add(segment, document) && skipped_.count == 1) first_skipped_ = what;
}

// Later epochs read a document again.
bool DocumentEncoder::Noted::add(const Segment& segment, const Document& document) {
  const Document& first = segment.documents.front();
  std::vector<bool>& noted = of_segment[{first.file, first.offset}];
  noted.resize(segment.documents.size());
  const auto at = std::ranges::lower_bound(segment.documents, document.begin, {}, &Document::begin);
  const auto index = static_cast<size_t>(at - segment.documents.begin());
  if (noted[index]) return false;
  noted[index] = true;
  ++count;
  return true;
}

int64_t DocumentEncoder::append(const Segment& segment, const Document& document,
                                std::vector<int32_t>& tokens, std::string& scratch) const {
  const std::string_view bytes = bytes_of(segment, document);
  if (!is_text(document)) {
    append_stored(document, bytes, tokens);
    return 0;
  }
  if (encoder_.chat) {
    const ChatEncoder::Appended appended = encoder_.chat->append(bytes, tokens);
    if (appended.problem) refuse(segment, document, "", *appended.problem);
    if (appended.is_joined) {
      std::lock_guard guard(mutex_);
      joined_.add(segment, document);
    }
    return 0;
  }
  const std::optional<std::string_view> text = text_of(segment, document, scratch);
  if (!text) return 0;
  append_text(document, *text, tokens);
  return std::ssize(*text);
}

std::optional<std::string_view> DocumentEncoder::check(const Segment& segment, const Document& document,
                                                       std::string& scratch) const {
  const std::string_view bytes = bytes_of(segment, document);
  if (encoder_.chat) {
    if (const auto problem = encoder_.chat->check(bytes)) refuse(segment, document, "", *problem);
    return std::nullopt;
  }
  if (is_text(document)) return text_of(segment, document, scratch);
  std::vector<int32_t> tokens;
  append_stored(document, bytes, tokens);
  return std::nullopt;
}

int64_t DocumentEncoder::bad_records() const {
  std::lock_guard guard(mutex_);
  return skipped_.count;
}

int64_t DocumentEncoder::joined_completions() const {
  std::lock_guard guard(mutex_);
  return joined_.count;
}

std::string DocumentEncoder::first_bad_record() const {
  std::lock_guard guard(mutex_);
  return first_skipped_;
}

void DocumentEncoder::append_text(const Document& document, std::string_view text,
                                  std::vector<int32_t>& tokens) const {
  if (text.empty()) return;
  if (encoder_.bos_id) tokens.push_back(*encoder_.bos_id);
  try {
    encoder_.encode(text, tokens);
  } catch (const Error& error) {
    fail<DataError>(kWhere, "'{}', document at byte {}: {}", path(document), document.offset, error.what());
  }
  if (encoder_.eos_id) tokens.push_back(*encoder_.eos_id);
}

void DocumentEncoder::append_stored(const Document& document, std::string_view bytes,
                                    std::vector<int32_t>& tokens) const {
  size_t width = document.kind == Document::Kind::u16_tokens ? 2 : 4, count = bytes.size() / width;
  size_t start = tokens.size();
  tokens.resize(start + count);
  uint32_t vocabulary = encoder_.vocab_size, highest = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t id = 0;
    std::memcpy(&id, bytes.data() + i * width, width);  // little endian, as the formats are
    highest = std::max(highest, id);
    tokens[start + i] = static_cast<int32_t>(id);
  }
  if (highest < vocabulary) return;
  for (size_t i = 0; i < count; ++i) {
    uint32_t id = tokens[start + i];
    if (id >= vocabulary) {
      fail<DataError>(kWhere,
                      "'{}' has token id {} at byte {}, but the vocabulary has {} (0 to {}): was it prepared "
                      "with another tokenizer?",
                      path(document), id, document.offset + i * width, vocabulary, vocabulary - 1);
    }
  }
}

void PackedTokens::copy_window(int64_t window, int64_t seq_len, int32_t* inputs, int32_t* targets,
                               int32_t* starts) const {
  int64_t first = window * (seq_len + 1);
  const int32_t* from = tokens.data() + first;
  for (int64_t i = 0; i < seq_len; ++i) {
    inputs[i] = id_of(from[i]);
    targets[i] = is_masked(from[i + 1]) ? kNoTarget : from[i + 1];
  }
  if (!starts) return;
  auto next = std::ranges::upper_bound(document_starts, first);
  int32_t start = 0;
  for (int64_t i = 0; i < seq_len; ++i) {
    if (next != document_starts.end() && *next == first + i) {
      start = static_cast<int32_t>(i);
      ++next;
    }
    starts[i] = start;
  }
}

}  // namespace ottava::data
