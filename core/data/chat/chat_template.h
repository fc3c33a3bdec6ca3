#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/chat/conversation.h"

namespace ottava::data {

/// How conversations become text, as by the models' own templates:
///   llama3      <|start_header_id|>ROLE<|end_header_id|>, two newlines, content without surrounding white
///               space, <|eot_id|>; BOS once, in front
///   llama3.1, llama3.2   the same, and always a system message that begins with two lines of dates
///   chatml      <|im_start|>ROLE, newline, content as it is, <|im_end|>, newline; no BOS
///   qwen2.5     the same, with Qwen's system message where there is none
///   qwen3       as chatml; thoughts (Message::thoughts, else <think> in the content) of earlier turns are
///               left out, and the last answer gets empty ones if it has none
enum class ChatTemplate : uint8_t { llama3, llama3_1, llama3_2, chatml, qwen2_5, qwen3 };
const std::vector<std::string>& chat_template_names();
std::string_view name_of(ChatTemplate style);
/// Inverse of name_of(). Throws ConfigError for an unknown name, and says why llama2 and gemma are not
/// supported.
ChatTemplate chat_template_named(std::string_view name);

/// Which of these templates a model's Jinja text is (chat_template.jinja, or chat_template of
/// tokenizer_config.json), if its text is known letter for letter; white space at its end does not count.
std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja);
/// A Jinja text that produces the same, for models of our own; recognise_chat_template() knows it.
std::string_view jinja_of(ChatTemplate style);

/// Special tokens of a template, without BOS. The last one ends a turn.
std::vector<std::string_view> special_tokens_of(ChatTemplate style);
/// Whether the template writes thoughts that are separate from the content.
bool writes_thoughts(ChatTemplate style);
/// Whether a conversation begins with the tokenizer's BOS.
bool begins_with_bos(ChatTemplate style);

/// What counts towards the loss.
enum class TrainOn : uint8_t {
  assistant,  ///< content and end of turn of every assistant turn
  last,       ///< the same of the last assistant turn only
  all         ///< everything, headers and the other roles too
};

/// The value of this name. Throws ConfigError for any other name.
TrainOn train_on_named(std::string_view name);

/// How conversations are written, and what of them counts.
struct ChatOptions {
  ChatTemplate style = ChatTemplate::chatml;
  TrainOn train_on = TrainOn::assistant;
  std::string system = {};           ///< message put in front of conversations that have none; empty: none
  std::string date = "26 Jul 2024";  ///< of llama3.1 and llama3.2, whose own texts have this or today's
};

/// A special token, or the text between two of them, which is encoded as one piece.
struct ChatRun {
  std::string text;
  bool is_special = false;
  struct Span {
    size_t begin, end;
  };
  std::vector<Span> trained = {};  ///< bytes that count towards the loss, ascending, not empty
};

/// Where render_chat() ends.
enum class ChatEnd : uint8_t {
  complete,        ///< as in training
  answer_follows,  ///< ends with the header of an assistant turn that a model is to write
};
/// The conversation as runs of text, without BOS.
std::vector<ChatRun> render_chat(Conversation conversation, const ChatOptions& options,
                                 ChatEnd end = ChatEnd::complete);

}  // namespace ottava::data
