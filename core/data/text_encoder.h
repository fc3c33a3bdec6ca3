#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ottava {
class Tokenizer;
}

namespace ottava::data {

class ChatEncoder;

/// What the loader needs from a tokenizer. `encode` appends the ids of a text, without BOS and EOS; several
/// threads may call it at once.
struct TextEncoder {
  std::function<void(std::string_view text, std::vector<int32_t>& ids)> encode;
  int32_t vocab_size = 0;
  /// Put around each document of text; documents of shards have theirs already.
  std::optional<int32_t> bos_id, eos_id;
  /// The tokenizer's EOS is its BOS, so eos_id is absent: the next document's BOS ends a document.
  bool bos_is_eos = false;
  std::string fingerprint;
  /// The encoder for lines of JSON that are conversations; null: they are texts.
  std::shared_ptr<const ChatEncoder> chat = {};
};

/// What to put around every document of text, if the tokenizer has it.
struct DocumentMarks {
  bool bos = true;
  bool eos = true;
};
/// A tokenizer as the loader uses it. Text that spells a special token stays text, so data cannot end its own
/// document. If BOS and EOS are one token (GPT-2), a boundary has only one, as in llm.c and nanoGPT: after
/// two, a model would begin its text with the end.
TextEncoder make_text_encoder(std::shared_ptr<const Tokenizer> tokenizer, DocumentMarks marks);
/// "each document begins with BOS and ends with EOS", or what else becomes of texts.
std::string_view marks_text(const TextEncoder& encoder);

}  // namespace ottava::data
