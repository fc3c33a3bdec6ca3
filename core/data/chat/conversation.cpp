#include "core/data/chat/conversation.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/io/array_of_lines.h"
#include "core/io/json.h"
#include "core/text/listed.h"

namespace ottava::data {
namespace {

constexpr std::array<std::string_view, 3> kFormats{"messages", "sharegpt", "prompt_completion"},
    kOwnKeys{"messages", "conversations", "completion"}, kRoles{"system", "user", "assistant"};
constexpr std::string_view kLine = "the line";

std::optional<ChatFormat> format_at(const std::array<std::string_view, 3>& names, std::string_view name) {
  const auto at = std::ranges::find(names, name);
  return at == names.end() ? std::nullopt : std::optional(static_cast<ChatFormat>(at - names.begin()));
}

/// What is wrong with a line; it does not leave read_conversation().
struct Refusal {
  std::string what;
};
template <class... A>
[[noreturn]] void refuse(fmt::format_string<A...> format, A&&... args) {
  throw Refusal{fmt::format(format, std::forward<A>(args)...)};
}

constexpr std::string_view kOtherData =
    "data that are no conversations need a format of their own, such as text or json_lines: format of the "
    "source in training.mixture or of the set in validation.datasets, or training.format";

const Json& member(const Json& object, std::string_view key, std::string_view of) {
  if (const Json* value = object.find(key)) return *value;
  const std::string names = listed(object.as_object(of), [](const auto& one) {
    return fmt::format("\"{}\"", std::string_view(one.first).substr(0, 64));
  });
  std::string remedy;
  for (const auto& [name, value] : object.as_object(of))
    if (const auto format = of == kLine ? chat_format_with(name) : std::nullopt)
      remedy = fmt::format(
          ": this line has the format {}; set training.format to it (or format of the source or set, or "
          "--format of data inspect)",
          name_of(*format));
  if (remedy.empty() && of == kLine && object.find("text")) remedy = fmt::format("; {}", kOtherData);
  refuse("{} has no key \"{}\", it has {}{}", of, key, names.empty() ? "none" : names, remedy);
}

Role role_of(std::string_view name, std::string_view of) {
  if (name == "system") return Role::system;
  if (name == "user" || name == "human") return Role::user;
  if (name == "assistant" || name == "gpt") return Role::assistant;
  for (std::string_view tool : {"tool", "function", "ipython", "function_call", "observation"})
    if (name == tool) refuse("{} has the role \"{}\": training on tool calls is not supported", of, name);
  refuse("{} has the role \"{}\", expected system, user or assistant (human or gpt)", of, name.substr(0, 64));
}

const std::string& text_of(const Json& value, std::string_view key, std::string_view of) {
  if (!value.is_string()) refuse("\"{}\" of {} is {}, expected a string", key, of, value.kind());
  return value.as_string(key);
}

std::optional<bool> train_of(const Json& message, std::string_view of) {
  if (const Json* train = message.find("train"); train && !train->is_null()) {
    if (!train->is_bool()) refuse("\"train\" of {} is {}, expected true or false", of, train->kind());
    return train->as_bool("train");
  }
  if (const Json* weight = message.find("weight"); weight && !weight->is_null()) {
    const bool is_known =
        weight->is_number() && (weight->as_number("weight") == 0 || weight->as_number("weight") == 1);
    if (!is_known) refuse("\"weight\" of {} is {}, expected 0 or 1", of, weight->dump().substr(0, 64));
    return weight->as_number("weight") == 1;
  }
  return std::nullopt;
}

/// Whether a key says nothing: it is absent, null or empty.
bool is_empty(const Json* value) {
  return !value || value->is_null() || (value->is_string() && value->as_string("").empty()) ||
         (value->is_array() && value->as_array("").empty());
}

std::optional<std::string> thoughts_of(const Json& message, Role role, std::string_view of) {
  for (std::string_view key : {"thinking", "reasoning"})
    if (!is_empty(message.find(key)))
      refuse("{} has \"{}\": put thoughts into \"reasoning_content\" instead", of, key);
  constexpr std::string_view kKey = "reasoning_content";
  const Json* thoughts = message.find(kKey);
  if (!thoughts || thoughts->is_null()) return std::nullopt;
  const std::string& text = text_of(*thoughts, kKey, of);
  if (role != Role::assistant && !text.empty())
    refuse("{} has \"{}\" and is from the {}: only the assistant's thoughts are supported", of, kKey,
           name_of(role));
  return text;
}

struct Keys {
  std::string_view role = "role", content = "content";
};

Message message_of(const Json& value, const Keys& keys, std::string_view of) {
  if (!value.is_object()) refuse("{} is {}, expected an object", of, value.kind());
  for (std::string_view key : {"tool_calls", "function_call", "tool_call_id"})
    if (const Json* call = value.find(key); call && !call->is_null())
      refuse("{} has \"{}\": training on tool calls is not supported", of, key);
  Message message{.role = role_of(text_of(member(value, keys.role, of), keys.role, of), of)};
  message.content = text_of(member(value, keys.content, of), keys.content, of);
  message.thoughts = thoughts_of(value, message.role, of);
  message.train = train_of(value, of);
  return message;
}

void add_messages(const Json& list, std::string_view key, const Keys& keys, std::vector<Message>& out) {
  if (!list.is_array()) refuse("\"{}\" is {}, expected an array of messages", key, list.kind());
  for (const Json& value : list.as_array(key))
    out.push_back(message_of(value, keys, fmt::format("message {}", out.size() + 1)));
}

Conversation prompt_and_completion(const Json& line) {
  Conversation out;
  const Json &prompt = member(line, "prompt", kLine), &completion = member(line, "completion", kLine);
  if (prompt.is_string() && completion.is_string()) {
    out.messages = {{.role = Role::user, .content = prompt.as_string("prompt"), .train = false},
                    {.role = Role::assistant, .content = completion.as_string("completion")}};
    out.is_completion = true;
    return out;
  }
  if (!prompt.is_array() || !completion.is_array())
    refuse("\"prompt\" is {} and \"completion\" {}, expected two strings or two arrays of messages",
           prompt.kind(), completion.kind());
  add_messages(prompt, "prompt", {}, out.messages);
  for (Message& message : out.messages) message.train = message.train.value_or(false);
  add_messages(completion, "completion", {}, out.messages);
  return out;
}

/// The system message that ShareGPT and its descendants keep beside the messages.
void add_system(const Json& line, ChatFormat format, Conversation& out) {
  const Json* system = line.find("system");
  if (is_empty(system)) return;
  const std::string& text = text_of(*system, "system", kLine);
  if (out.is_completion)
    refuse("the line has \"system\", which is not possible if prompt and completion are strings");
  if (!out.messages.empty() && out.messages[0].role == Role::system)
    refuse("the line has \"system\", and message 1 is a system message too: keep only one of them");
  Message message{.role = Role::system, .content = text};
  if (format == ChatFormat::prompt_completion) message.train = false;
  out.messages.insert(out.messages.begin(), std::move(message));
}

Json parse(std::string_view line) {
  if (begins_array(line)) refuse("{}", kArrayOfLines);
  try {
    return Json::parse(line, "");
  } catch (const FileError& error) {
    const std::string what = std::string(error.what()).substr(3);  // without the place that it did not know
    const size_t begin = line.find_first_not_of(" \t\r");
    const bool may_be_object = begin != std::string_view::npos && line[begin] == '{';
    throw Refusal{may_be_object ? what : fmt::format("{}; {}", what, kOtherData)};
  }
}

Conversation conversation_of(std::string_view text, ChatFormat format) {
  const Json line = parse(text);
  if (!line.is_object()) refuse("the line is {}, expected a JSON object", line.kind());
  const Json* tools = line.find("tools");  // ShareGPT has them as text
  if (!is_empty(tools) && !(tools->is_string() && tools->as_string("tools") == "[]"))
    refuse("the line has \"tools\": training on tool calls is not supported");
  Conversation out;
  switch (format) {
    case ChatFormat::messages:
      add_messages(member(line, "messages", kLine), "messages", {}, out.messages);
      break;
    case ChatFormat::sharegpt:
      add_messages(member(line, "conversations", kLine), "conversations", {"from", "value"}, out.messages);
      break;
    case ChatFormat::prompt_completion:
      out = prompt_and_completion(line);
      break;
  }
  add_system(line, format, out);
  if (std::optional<std::string> problem = order_problem(out)) throw Refusal{std::move(*problem)};
  return out;
}

}  // namespace

std::string_view name_of(Role role) { return kRoles[static_cast<size_t>(role)]; }

std::string_view name_of(ChatFormat format) { return kFormats[static_cast<size_t>(format)]; }

std::optional<ChatFormat> chat_format_named(std::string_view name) { return format_at(kFormats, name); }

std::optional<ChatFormat> chat_format_with(std::string_view key) { return format_at(kOwnKeys, key); }

std::optional<std::string> read_conversation(std::string_view line, ChatFormat format, Conversation& out) {
  try {
    out = conversation_of(line, format);
    return std::nullopt;
  } catch (Refusal& refusal) {
    return std::move(refusal.what);
  }
}

std::optional<std::string> order_problem(const Conversation& c) {
  if (c.messages.empty()) return "the conversation has no messages";
  bool has_answer = false;
  Role expected = Role::user;
  for (size_t i = 0; i < c.messages.size(); ++i) {
    const Role role = c.messages[i].role;
    if (i == 0 && role == Role::system) continue;
    if (role != expected) {
      return fmt::format(
          "message {} is from the {}, expected one from the {}: the order is system (optional), user, "
          "assistant, user, ...",
          i + 1, name_of(role), name_of(expected));
    }
    has_answer = has_answer || role == Role::assistant;
    expected = role == Role::user ? Role::assistant : Role::user;
  }
  if (!has_answer) return "the conversation has no assistant message to learn from";
  return std::nullopt;
}

}  // namespace ottava::data
