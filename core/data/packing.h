#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/data/corpus.h"
#include "core/data/text_encoder.h"

namespace ottava::data {

/// A target that does not count: kIgnoreIndex of core/ops/cross_entropy.h.
inline constexpr int32_t kNoTarget = -100;

/// What becomes of a line that is not a JSON object with the text.
enum class BadRecords { error, skip };

/// Makes tokens of documents. Safe to use from several threads.
class DocumentEncoder {
 public:
  /// Throws DataError for a shard that was made with another tokenizer than the encoder's, if that has one.
  DocumentEncoder(const Corpus& corpus, TextEncoder encoder, std::string text_key,
                  BadRecords bad_records = BadRecords::error);

  /// Appends a document to `tokens`: for text, its tokens between BOS and EOS, as far as the encoder has
  /// these; for shards, the tokens as stored; for conversations, tokens that may be masked
  /// (core/data/chat/masked_token.h). `scratch` is reused memory. A JSON document without any text gives
  /// nothing, and so does a bad one that is to be skipped. A conversation must have something that counts
  /// towards the loss. Returns the bytes of the text itself, without what stores it in JSON; 0 for tokens and
  /// conversations. Throws DataError for a malformed JSON line (with file, line, column), an id outside
  /// the vocabulary (file, byte, id), and whatever the tokenizer refuses.
  int64_t append(const Segment& segment, const Document& document, std::vector<int32_t>& tokens,
                 std::string& scratch) const;

  /// Checks all that append() checks, except for what the tokenizer does. Returns the text of the document,
  /// or nothing for tokens, conversations and a bad record that is to be skipped. Valid as long as `segment`
  /// and `scratch` are.
  std::optional<std::string_view> check(const Segment& segment, const Document& document,
                                        std::string& scratch) const;
  /// "'a.jsonl' line 3", "'a.txt', document at byte 812".
  std::string place(const Document& document) const;

  const TextEncoder& encoder() const { return encoder_; }
  /// How many bad records have been left out so far, each once however often it was read, and what was wrong
  /// with the first.
  int64_t bad_records() const;
  std::string first_bad_record() const;
  /// Completions so far that begin inside a token (ChatEncoder::Appended::is_joined), each once.
  int64_t joined_completions() const;

 private:
  std::optional<std::string_view> text_of(const Segment& segment, const Document& document,
                                          std::string& scratch) const;
  void refuse(const Segment& segment, const Document& document, std::string_view column,
              std::string_view problem) const;
  /// Documents that something is so of, each once however often it was read.
  struct Noted {
    int64_t count = 0;
    /// By file and offset of a segment's first document: which of its documents they are.
    std::map<std::pair<int32_t, int64_t>, std::vector<bool>> of_segment = {};
    bool add(const Segment& segment, const Document& document);  ///< false if it is known already
  };
  void append_text(const Document& document, std::string_view text, std::vector<int32_t>& tokens) const;
  void append_stored(const Document& document, std::string_view bytes, std::vector<int32_t>& tokens) const;
  const std::string& path(const Document& document) const;

  const Corpus& corpus_;
  TextEncoder encoder_;
  std::string text_key_;
  BadRecords bad_records_;
  mutable std::mutex mutex_;  // guards what follows
  mutable Noted skipped_, joined_;
  mutable std::string first_skipped_;
};

/// Consecutive windows of seq_len + 1 tokens, without overlap, over the documents of one segment. A document
/// may begin in one window and continue in the next.
struct PackedTokens {
  std::vector<int32_t> tokens;  ///< of conversations: masked where the loss does not count
  /// Positions in `tokens`, ascending. A piece that continues a document (Document::goes_on) has none if it
  /// comes right after the piece that it follows there.
  std::vector<int64_t> document_starts;

  int64_t windows(int64_t seq_len) const { return static_cast<int64_t>(tokens.size()) / (seq_len + 1); }
  int64_t dropped(int64_t seq_len) const { return static_cast<int64_t>(tokens.size()) % (seq_len + 1); }
  /// Window w in the form that training needs: inputs = the first seq_len tokens, targets = the last seq_len
  /// tokens (kNoTarget for masked ones), and for each input the position within the window at which its
  /// document starts (0 if it started earlier). document_starts may be null.
  void copy_window(int64_t window, int64_t seq_len, int32_t* inputs, int32_t* targets,
                   int32_t* document_starts) const;
};

}  // namespace ottava::data
