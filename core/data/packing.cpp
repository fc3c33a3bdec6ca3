#include "core/data/packing.h"

#include <algorithm>
#include <cstring>

#include "core/data/json_line.h"
#include "core/error.h"

namespace ottava::data {
namespace {

constexpr std::string_view kWhere = "data";

}  // namespace

const std::string& DocumentEncoder::path(const Document& document) const {
  return corpus_.files()[static_cast<size_t>(document.file)].path;
}

void DocumentEncoder::append(const Segment& segment, const Document& document, std::vector<int32_t>& tokens,
                             std::string& scratch) const {
  std::string_view bytes =
      std::string_view(segment.bytes)
          .substr(static_cast<size_t>(document.begin), static_cast<size_t>(document.end - document.begin));
  switch (document.kind) {
    case Document::Kind::text:
      return append_text(document, bytes, tokens);
    case Document::Kind::json_line: {
      scratch.clear();
      if (auto problem = append_json_string(bytes, text_key_, scratch)) {
        fail<DataError>(kWhere, "'{}' line {}, column {}: {}", path(document),
                        corpus_.line_number(document.file, document.offset), problem->column, problem->what);
      }
      return append_text(document, scratch, tokens);
    }
    case Document::Kind::u16_tokens:
    case Document::Kind::u32_tokens:
      return append_stored(document, bytes, tokens);
  }
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
  uint32_t vocabulary = static_cast<uint32_t>(encoder_.vocab_size), highest = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t id = 0;
    std::memcpy(&id, bytes.data() + i * width, width);  // little endian, as the formats are
    highest = std::max(highest, id);
    tokens[start + i] = static_cast<int32_t>(id);
  }
  if (highest < vocabulary) return;
  for (size_t i = 0; i < count; ++i) {
    uint32_t id = static_cast<uint32_t>(tokens[start + i]);
    if (id >= vocabulary) {
      fail<DataError>(kWhere,
                      "'{}' has token id {} at byte {}, the vocabulary has {} (0 to {}): was it prepared "
                      "with another tokenizer?",
                      path(document), id, document.offset + static_cast<int64_t>(i * width), vocabulary,
                      vocabulary - 1);
    }
  }
}

void PackedTokens::copy_window(int64_t window, int64_t seq_len, int32_t* inputs, int32_t* targets,
                               int32_t* starts) const {
  int64_t first = window * (seq_len + 1);
  const int32_t* from = tokens.data() + first;
  std::copy(from, from + seq_len, inputs);
  std::copy(from + 1, from + 1 + seq_len, targets);
  if (!starts) return;
  auto next = std::upper_bound(document_starts.begin(), document_starts.end(), first);
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
