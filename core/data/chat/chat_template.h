#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/chat/conversation.h"

namespace ottava::data {

/// How conversations become text, as the models' own templates do it:
///   llama3      <|start_header_id|>ROLE<|end_header_id|>, two newlines, content without white space around
///   it,
///               <|eot_id|>; BOS once, in front
///   llama3.1, llama3.2   the same, and always a system message that begins with two lines of dates
///   chatml      <|im_start|>ROLE, newline, content as it is, <|im_end|>, newline; no BOS
///   qwen2.5     the same, with Qwen's system message where there is none
///   qwen3       the same without one; thoughts (Message::thoughts, else <think> in the content) of earlier
///               turns are left out, and the last answer gets empty ones where it has none
enum class ChatTemplate : uint8_t { llama3, llama3_1, llama3_2, chatml, qwen2_5, qwen3 };
const std::vector<std::string>& chat_template_names();
std::string_view name_of(ChatTemplate style);
/// Throws ConfigError for a name that is not among them, and says of llama2, gemma and mistral why they are
/// not.
ChatTemplate chat_template_named(std::string_view name);

/// The template of a model's files (chat_template.jinja, or chat_template of tokenizer_config.json) if it is
/// one that is written here letter for letter; white space at its end does not count.
std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja);
/// A Jinja text that writes the same, for models of our own; recognise_chat_template() knows it.
std::string_view jinja_of(ChatTemplate style);

/// Special tokens of a template, without BOS. The last one ends a turn.
std::vector<std::string_view> special_tokens_of(ChatTemplate style);
/// Whether thoughts that stand apart from the content are written.
bool writes_thoughts(ChatTemplate style);
/// Whether the tokenizer's BOS stands in front of a conversation.
bool begins_with_bos(ChatTemplate style);

enum class TrainOn : uint8_t {
  assistant,  ///< content and end of turn of every assistant turn
  last,       ///< of the last one
  all         ///< everything, headers and the other roles too
};

/// Throws ConfigError for another name than these.
TrainOn train_on_named(std::string_view name);

struct ChatOptions {
  ChatTemplate style = ChatTemplate::chatml;
  TrainOn train_on = TrainOn::assistant;
  std::string system = {};           ///< message put in front of conversations that have none; empty: none
  std::string date = "26 Jul 2024";  ///< of llama3.1 and llama3.2, whose own texts have this or today's
};

/// A special token, or text between two of them, which is encoded as one.
struct ChatRun {
  std::string text;
  bool is_special = false;
  struct Span {
    size_t begin, end;
  };
  std::vector<Span> trained = {};  ///< bytes that count towards the loss, ascending, not empty
};

enum class ChatEnd : uint8_t {
  complete,        ///< as in training
  answer_follows,  ///< and the header of an assistant turn, which a model is to write
};
/// The conversation without BOS.
std::vector<ChatRun> render_chat(Conversation conversation, const ChatOptions& options,
                                 ChatEnd end = ChatEnd::complete);

}  // namespace ottava::data
