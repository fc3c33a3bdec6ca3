#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/chat/chat_template.h"
#include "core/data/chat/conversation.h"

namespace ottava {
class Tokenizer;
}

namespace ottava::data {

/// Turns conversations into tokens and the mask of the loss. Immutable; any number of threads may use it at
/// once.
class ChatEncoder {
 public:
  /// What a person sets where it is used, by which messages name it.
  struct Settings {
    std::string_view style = "chat.template", train_on = "chat.train_on";
    bool choose_tokenizer = true;
  };
  struct Options {
    ChatFormat format = ChatFormat::messages;
    /// Absent: only prompts and completions that are strings can be read.
    std::optional<ChatOptions> chat;
    /// Put around a prompt and completion that are strings, if the tokenizer has them.
    bool bos = true, eos = true;
    Settings settings = {};
  };
  /// Throws ConfigError if the tokenizer lacks special tokens of the template.
  ChatEncoder(std::shared_ptr<const Tokenizer> tokenizer, Options options);

  struct Appended {
    std::optional<std::string> problem = {};
    /// A completion begins inside a token, which the prompt begins ("is " and "blue" are "is" and " blue").
    /// A prompt that the trained model is given ends with another token.
    bool is_joined = false;
  };
  /// Appends the tokens of a line, masked (core/data/chat/masked_token.h) where the loss does not count; the
  /// first always is. Text between special tokens is encoded as a whole, as in HF; unlike in HF, text that
  /// spells a special token stays text. A token counts if any of its bytes does. If something is wrong with
  /// the line, says what it is and leaves `tokens` as before: anything that read_conversation() refuses,
  /// thoughts that the template does not write, or a conversation of which nothing would count. Throws
  /// DataError if the tokenizer adds or removes characters, which no other line would mend.
  Appended append(std::string_view line, std::vector<int32_t>& tokens) const;
  /// What append() would find wrong, except for what the tokenizer finds.
  std::optional<std::string> check(std::string_view line) const;

  /// Tokens of a conversation, which ends with a turn of the user, up to where the answer begins. Needs
  /// options.chat. Throws DataError as append() does.
  std::vector<int32_t> prompt(const Conversation& conversation) const;
  /// The token that ends an answer. Needs options.chat.
  int32_t end_of_turn() const { return specials_.back(); }

  /// The token that fills the rest of a window.
  int32_t pad_id() const { return pad_id_; }
  /// Everything that decides tokens and masks besides the tokenizer.
  std::string description() const;

 private:
  std::optional<std::string> render(std::string_view line, bool& has_marks, std::vector<ChatRun>& runs) const;
  /// Whether what counts begins inside a token.
  bool encode(const ChatRun& run, std::vector<int32_t>& tokens) const;
  void normalise(Conversation& conversation) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  Options options_;
  std::vector<std::string_view> names_;  ///< of special tokens
  std::vector<int32_t> specials_;
  int32_t pad_id_ = 0;
};

}  // namespace ottava::data
