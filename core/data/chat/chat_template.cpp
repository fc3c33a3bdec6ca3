#include "core/data/chat/chat_template.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/data/tokenizer/unicode.h"
#include "core/error.h"

namespace ottava::data {
namespace {

constexpr std::string_view kHeader = "<|start_header_id|>", kHeaderEnd = "<|end_header_id|>",
                           kEot = "<|eot_id|>", kImStart = "<|im_start|>", kImEnd = "<|im_end|>",
                           kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kQwenSystem =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

bool is_llama(ChatTemplate style) { return style <= ChatTemplate::llama3_2; }

/// Joins neighbouring texts into one run.
class Writer {
 public:
  std::vector<ChatRun> runs;

  void special(std::string_view token, bool counts) {
    runs.push_back({.text = std::string(token), .is_special = true});
    if (counts) runs.back().trained = {{0, token.size()}};
  }
  void text(std::string_view text, bool counts) {
    if (text.empty()) return;
    if (runs.empty() || runs.back().is_special) runs.emplace_back();
    ChatRun& run = runs.back();
    const size_t begin = run.text.size(), end = begin + text.size();
    run.text += text;
    if (!counts) return;
    if (!run.trained.empty() && run.trained.back().end == begin) {
      run.trained.back().end = end;
    } else {
      run.trained.push_back({begin, end});
    }
  }
};

std::string_view without_leading_newlines(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}
std::string_view without_trailing_newlines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

/// An answer that may begin with the model's thoughts.
struct Answer {
  std::string_view thoughts, content;
};
Answer split_answer(std::string_view text) {
  const size_t first = text.find(kThinkEnd), last = text.rfind(kThinkEnd);
  if (first == std::string_view::npos) return {"", text};
  std::string_view thoughts = without_trailing_newlines(text.substr(0, first));
  if (const size_t begin = thoughts.rfind(kThink); begin != std::string_view::npos)
    thoughts.remove_prefix(begin + kThink.size());
  return {without_leading_newlines(thoughts), without_leading_newlines(text.substr(last + kThinkEnd.size()))};
}

/// The user's message to which the last answer belongs; the last message if there is none.
size_t last_query(const std::vector<Message>& messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string& text = messages[i].content;
    const bool is_response = text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
    if (messages[i].role == Role::user && !is_response) return i;
  }
  return messages.size() - 1;
}

struct Counts {
  bool all = false;      ///< headers and what stands between messages
  bool content = false;  ///< content and end of turn
};

class ChatWriter {
 public:
  ChatWriter(const ChatOptions& options, const std::vector<Message>& messages)
      : options_(options), messages_(messages) {
    for (size_t i = 0; i < messages.size(); ++i)
      if (messages[i].role == Role::assistant) last_answer_ = i;
  }

  std::vector<ChatRun> write(ChatEnd end) {
    for (size_t i = 0; i < messages_.size(); ++i) write_message(i);
    if (end == ChatEnd::answer_follows) header(name_of(Role::assistant), Counts{}.all);
    return std::move(out_.runs);
  }

 private:
  Counts counts(size_t i) const {
    const Message& m = messages_[i];
    const bool is_answer = m.role == Role::assistant;
    switch (options_.train_on) {
      case TrainOn::assistant:
        return {.content = m.train.value_or(is_answer)};
      case TrainOn::last:
        return {.content = m.train.value_or(is_answer && i == last_answer_)};
      case TrainOn::all:
        return {.all = m.train.value_or(true), .content = m.train.value_or(true)};
    }
    return {};
  }
  void header(std::string_view role, bool counts) {
    out_.special(is_llama(options_.style) ? kHeader : kImStart, counts);
    out_.text(role, counts);
    if (is_llama(options_.style)) out_.special(kHeaderEnd, counts);
    out_.text(is_llama(options_.style) ? "\n\n" : "\n", counts);
  }
  void write_message(size_t i) {
    const Message& m = messages_[i];
    const Counts c = counts(i);
    header(name_of(m.role), c.all);
    if (is_llama(options_.style)) {
      const bool has_dates = m.role == Role::system && options_.style != ChatTemplate::llama3;
      if (has_dates)
        out_.text("Cutting Knowledge Date: December 2023\nToday Date: " + options_.date + "\n\n", c.all);
      out_.text(tokenizer::stripped(m.content), c.content);
      return out_.special(kEot, c.content);
    }
    if (m.role == Role::assistant && options_.style == ChatTemplate::qwen3) {
      const Answer answer = m.thoughts ? Answer{*m.thoughts, m.content} : split_answer(m.content);
      const bool thinks =
          i > last_query(messages_) && (i + 1 == messages_.size() || !answer.thoughts.empty());
      if (thinks) {
        out_.text("<think>\n", c.content);
        out_.text(without_trailing_newlines(without_leading_newlines(answer.thoughts)), c.content);
        out_.text("\n</think>\n\n", c.content);
      }
      out_.text(thinks ? without_leading_newlines(answer.content) : answer.content, c.content);
    } else {
      out_.text(m.content, c.content);
    }
    out_.special(kImEnd, c.content);
    out_.text("\n", c.all);
  }

  const ChatOptions& options_;
  const std::vector<Message>& messages_;
  size_t last_answer_ = 0;
  Writer out_;
};

}  // namespace

const std::vector<std::string>& chat_template_names() {
  static const std::vector<std::string> names{"llama3", "llama3.1", "llama3.2", "chatml", "qwen2.5", "qwen3"};
  return names;
}

std::string_view name_of(ChatTemplate style) { return chat_template_names()[static_cast<size_t>(style)]; }

ChatTemplate chat_template_named(std::string_view name) {
  const auto& names = chat_template_names();
  const auto at = std::ranges::find(names, name);
  if (at != names.end()) return static_cast<ChatTemplate>(at - names.begin());
  for (std::string_view other : {"llama2", "gemma"})
    if (name.starts_with(other))
      fail<ConfigError>(
          "chat",
          "the template {} is for tokenizers with byte fallback, which are not supported; expected {}", name,
          fmt::join(names, ", "));
  fail<ConfigError>("chat", "unknown template '{}': expected {}", name, fmt::join(names, ", "));
}

TrainOn train_on_named(std::string_view name) {
  if (name == "assistant") return TrainOn::assistant;
  if (name == "last") return TrainOn::last;
  if (name == "all") return TrainOn::all;
  fail<ConfigError>("chat", "the loss is to count '{}': expected assistant, last or all", name);
}

std::vector<std::string_view> special_tokens_of(ChatTemplate style) {
  if (is_llama(style)) return {kHeader, kHeaderEnd, kEot};
  return {kImStart, kImEnd};
}

bool writes_thoughts(ChatTemplate style) { return style == ChatTemplate::qwen3; }

bool begins_with_bos(ChatTemplate style) { return is_llama(style); }

std::vector<ChatRun> render_chat(Conversation conversation, const ChatOptions& options, ChatEnd end) {
  std::vector<Message>& messages = conversation.messages;
  if (messages.empty() || messages[0].role != Role::system) {
    std::string system = options.system;
    if (system.empty() && options.style == ChatTemplate::qwen2_5) system = kQwenSystem;
    const bool always = options.style == ChatTemplate::llama3_1 || options.style == ChatTemplate::llama3_2;
    if (!system.empty() || always)
      messages.insert(messages.begin(), {.role = Role::system, .content = std::move(system)});
  }
  return ChatWriter(options, messages).write(end);
}

}  // namespace ottava::data
