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
  /// What the assistant thought, if the line has it separate from the content.
  std::optional<std::string> thoughts = {};
  std::optional<bool> train = {};  ///< whether it counts towards the loss; absent: as TrainOn says
};

/// Turns in order: perhaps a system message, then user and assistant alternately.
struct Conversation {
  std::vector<Message> messages;
  /// True if the two messages are a prompt and its completion, which are joined as they are, without a
  /// template.
  bool is_completion = false;
};

/// What a line of JSON lines holds, one conversation each:
///   messages            {"messages": [{"role": "user", "content": "..."}, ...]}
///   sharegpt            {"conversations": [{"from": "human", "value": "..."}, ...]}
///   prompt_completion   {"prompt": "...", "completion": "..."}, or a list of messages under each
/// Messages may have "train": true or false, or OpenAI's "weight": 0 or 1; the assistant's may have
/// "reasoning_content". The line may have "system", which becomes the first message; it is refused if that is
/// one already, or beside a prompt and completion that are strings. Thoughts under other names and tools are
/// refused, since nothing here would write them. Other keys are ignored.
enum class ChatFormat : uint8_t { messages, sharegpt, prompt_completion };
std::string_view name_of(ChatFormat format);
/// The format of this name; nothing for an unknown name.
std::optional<ChatFormat> chat_format_named(std::string_view name);
/// The format of lines that have this key, if the key belongs to one format only: "messages",
/// "conversations", "completion".
std::optional<ChatFormat> chat_format_with(std::string_view key);

/// Overwrites `out` with the conversation of a line. On failure returns what is wrong with the line, without
/// naming its place: malformed JSON, a missing key, tool calls, contents that are not strings, roles in
/// another order than [system] user assistant user ..., no assistant turn. What is under "prompt" does not
/// count towards the loss unless its messages say so.
std::optional<std::string> read_conversation(std::string_view line, ChatFormat format, Conversation& out);

/// What is wrong with the order of roles; nothing if it is as above.
std::optional<std::string> order_problem(const Conversation& conversation);

}  // namespace ottava::data
