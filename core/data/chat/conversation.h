#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ottava::data {

enum class Role : uint8_t { system, user, assistant };
/// "system", "user", "assistant".
std::string_view name_of(Role role);

struct Message {
  Role role = Role::user;
  std::string content;
  /// What the assistant thought, where the line has it apart from the content.
  std::optional<std::string> thoughts = {};
  std::optional<bool> train = {};  ///< whether it counts towards the loss; absent: as TrainOn says
};

struct Conversation {
  std::vector<Message> messages;
  /// The two messages are a prompt and its completion, which are joined as they are, without a template.
  bool is_completion = false;
};

/// What a line of JSON lines holds, one conversation each:
///   messages            {"messages": [{"role": "user", "content": "..."}, ...]}
///   sharegpt            {"conversations": [{"from": "human", "value": "..."}, ...]}
///   prompt_completion   {"prompt": "...", "completion": "..."}, or a list of messages under each
/// Messages may have "train": true or false, or OpenAI's "weight": 0 or 1, those of the assistant
/// "reasoning_content"; the line may have "system", a first message where there is none. Thoughts under other
/// names and tools are refused, as nothing here would write them. Other keys are not looked at.
enum class ChatFormat : uint8_t { messages, sharegpt, prompt_completion };
std::string_view name_of(ChatFormat format);
/// Nothing for any other name.
std::optional<ChatFormat> chat_format_named(std::string_view name);
/// The format of lines that have this key, if it is one's own: "messages", "conversations", "completion".
std::optional<ChatFormat> chat_format_with(std::string_view key);

/// Overwrites `out` with the conversation of a line. On failure returns what is wrong with it, without a
/// place: malformed JSON, a missing key, tool calls, contents that are no strings, roles in another order
/// than [system] user assistant user ..., no assistant turn. What stands under "prompt" never counts towards
/// the loss unless its messages say so.
std::optional<std::string> read_conversation(std::string_view line, ChatFormat format, Conversation& out);

/// What is wrong with the order of roles; nothing: it is as above.
std::optional<std::string> order_problem(const Conversation& conversation);

}  // namespace ottava::data
