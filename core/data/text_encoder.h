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

/// What the loader needs of a tokenizer. `encode` appends the ids of a text, without BOS and EOS; it is
/// called from several threads at once.
struct TextEncoder {
  std::function<void(std::string_view text, std::vector<int32_t>& ids)> encode;
  int32_t vocab_size = 0;
  /// Put around each document of text; documents of shards have theirs already.
  std::optional<int32_t> bos_id, eos_id;
  /// The tokenizer's EOS is its BOS, so eos_id is absent: the BOS of the next document ends one.
  bool bos_is_eos = false;
  std::string fingerprint;
  /// Lines of JSON are conversations: what makes tokens of them. Null: texts.
  std::shared_ptr<const ChatEncoder> chat = {};
};

/// What to put around every document of text, where the tokenizer has it.
struct DocumentMarks {
  bool bos = true;
  bool eos = true;
};
/// A tokenizer as the loader uses it. Text that spells a special token stays text: data cannot end its own
/// document. Where BOS and EOS are one token (GPT-2) a boundary is one of it, as in llm.c and nanoGPT: after
/// two, a model begins its text with the end.
TextEncoder make_text_encoder(std::shared_ptr<const Tokenizer> tokenizer, DocumentMarks marks);
/// "each document begins with BOS and ends with EOS", or what else becomes of texts.
std::string_view marks_text(const TextEncoder& encoder);

}  // namespace ottava::data
