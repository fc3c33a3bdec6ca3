#pragma once

#include <ostream>
#include <string>
#include <string_view>

#include "apps/generate/answer.h"
#include "core/data/chat/chat_encoder.h"
#include "core/error.h"

namespace ottava {

/// A conversation does not fit the generator with what was said last, but may with something shorter.
struct TooLong : ConfigError {
  using ConfigError::ConfigError;
};

/// A conversation with a model, turn by turn. What the generator holds of earlier turns is reused as far as
/// the template writes them unchanged.
class ChatSession {
 public:
  /// All arguments by reference must outlive it. An empty `system`: no system message.
  ChatSession(const data::ChatEncoder& encoder, const Tokenizer& tokenizer, Generator& generator,
              std::string system);

  /// Writes the answer to what the user says to `out` and returns how many tokens were drawn. Throws TooLong
  /// if the conversation with the longest possible answer would not fit the generator. After an error the
  /// conversation is as it was before.
  int64_t say(std::string_view text, const AnswerOptions& options, std::ostream& out);

 private:
  const data::ChatEncoder& encoder_;
  const Tokenizer& tokenizer_;
  Generator& generator_;
  data::Conversation conversation_;
  std::vector<int32_t> held_;  ///< by the generator
};

}  // namespace ottava
