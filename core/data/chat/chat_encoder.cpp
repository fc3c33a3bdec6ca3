#include "core/data/chat/chat_encoder.h"

#include <algorithm>

#include "core/data/chat/masked_token.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"
#include "core/text/listed.h"

namespace ottava::data {
namespace {

constexpr const char* kNoCompletion = "the loss counts no token, because the completion is empty";
constexpr const char* kOneToken =
    "the loss counts no token: the only one is the first, which follows nothing";

}  // namespace

ChatEncoder::ChatEncoder(std::shared_ptr<const Tokenizer> tokenizer, Options options)
    : tokenizer_(std::move(tokenizer)), options_(std::move(options)) {
  pad_id_ = tokenizer_->pad_id().value_or(tokenizer_->eos_id().value_or(0));
  if (!options_.chat) return;
  names_ = special_tokens_of(options_.chat->style);
  std::vector<std::string_view> missing;
  for (std::string_view name : names_) {
    const std::optional<int32_t> id = tokenizer_->token_id(name);
    if (id && tokenizer_->is_special(*id)) {
      specials_.push_back(*id);
    } else {
      missing.push_back(name);
    }
  }
  if (missing.empty()) return;
  std::string lacks, all;
  for (std::string_view name : missing) add_item(lacks, name);
  for (std::string_view name : names_) all += fmt::format(" '{}'", name);
  std::string others;
  if (options_.settings.choose_tokenizer) {
    others = fmt::format(
        ", or a tokenizer that has them (ottava tokenizer train --special-tokens '<|begin_of_text|>' "
        "'<|end_of_text|>'{})",
        all);
  }
  fail<ConfigError>(
      "chat", "the tokenizer has no special tokens {}, which the template {} needs: choose another {}{}",
      lacks, name_of(options_.chat->style), options_.settings.style, others);
}

void ChatEncoder::normalise(Conversation& c) const {
  for (Message& message : c.messages) {
    message.content = tokenizer_->normalized(message.content);
    if (message.thoughts) message.thoughts = tokenizer_->normalized(*message.thoughts);
  }
}

std::optional<std::string> ChatEncoder::render(std::string_view line, bool& has_marks,
                                               std::vector<ChatRun>& runs) const {
  Conversation c;
  if (auto problem = read_conversation(line, options_.format, c)) return problem;
  has_marks = c.is_completion;
  if (c.is_completion) {
    const std::string text = tokenizer_->normalized(c.messages[0].content + c.messages[1].content);
    // A mark at the start of the completion may have changed the last character of the prompt.
    const std::string prompt = tokenizer_->normalized(c.messages[0].content);
    const auto parting = std::ranges::mismatch(prompt, text).in2 - text.begin();
    const size_t begin = parting;
    if (text.empty()) return "prompt and completion are empty";
    runs = {{.text = text}};
    if (begin == text.size() && !(options_.eos && tokenizer_->eos_id())) return kNoCompletion;
    if (begin < text.size()) runs[0].trained = {{begin, text.size()}};
    return std::nullopt;
  }
  if (!options_.chat)
    return fmt::format("the prompt is a list of messages, which needs a chat template: set {}",
                       options_.settings.style);
  for (size_t i = 0; i < c.messages.size(); ++i) {
    if (c.messages[i].thoughts.value_or("").empty() || writes_thoughts(options_.chat->style)) continue;
    return fmt::format("message {} has \"reasoning_content\", which the template {} does not write", i + 1,
                       name_of(options_.chat->style));
  }
  normalise(c);
  runs = render_chat(std::move(c), *options_.chat);
  if (std::ranges::all_of(runs, [](const ChatRun& run) { return run.trained.empty(); }))
    return fmt::format("the loss counts no token: {}, and train or weight of the messages, leave none",
                       options_.settings.train_on);
  return std::nullopt;
}

std::optional<std::string> ChatEncoder::check(std::string_view line) const {
  bool has_marks = false;
  std::vector<ChatRun> runs;
  return render(line, has_marks, runs);
}

bool ChatEncoder::encode(const ChatRun& run, std::vector<int32_t>& tokens) const {
  if (run.is_special) {
    const auto at = std::ranges::find(names_, run.text) - names_.begin();
    const int32_t id = specials_[at];
    tokens.push_back(run.trained.empty() ? masked(id) : id);
    return false;
  }
  const size_t first = tokens.size();
  tokenizer_->encode(run.text, tokens, {.special_text = EncodeOptions::SpecialText::plain});
  size_t begin = 0;
  bool is_joined = false;
  auto span = run.trained.begin();
  for (size_t i = first; i < tokens.size(); ++i) {
    const size_t end = begin + tokenizer_->token_bytes(tokens[i]).size();
    while (span != run.trained.end() && span->end <= begin) ++span;
    const bool counts = span != run.trained.end() && span->begin < end;
    if (!counts) tokens[i] = masked(tokens[i]);
    is_joined = is_joined || (counts && begin < span->begin);
    begin = end;
  }
  if (begin != run.text.size()) {
    fail<DataError>(
        "chat",
        "the tokenizer makes {} bytes of {}: one that adds or removes characters (a prefix space, or "
        "added tokens that take white space along) cannot be used for chats",
        begin, run.text.size());
  }
  return is_joined;
}

ChatEncoder::Appended ChatEncoder::append(std::string_view line, std::vector<int32_t>& tokens) const {
  bool has_marks = false;
  std::vector<ChatRun> runs;
  if (auto problem = render(line, has_marks, runs)) return {.problem = std::move(problem)};
  Appended out;
  const size_t first = tokens.size();
  const bool has_bos = has_marks ? options_.bos : begins_with_bos(options_.chat->style);
  if (has_bos && tokenizer_->bos_id()) tokens.push_back(masked(*tokenizer_->bos_id()));
  for (const ChatRun& run : runs) {
    const bool is_joined = encode(run, tokens);
    out.is_joined = out.is_joined || (is_joined && has_marks);
  }
  if (has_marks && options_.eos && tokenizer_->eos_id()) tokens.push_back(*tokenizer_->eos_id());
  tokens[first] = masked(id_of(tokens[first]));  // nothing is there to predict it from
  if (std::all_of(tokens.begin() + first, tokens.end(), is_masked)) {
    tokens.resize(first);
    return {.problem = kOneToken};
  }
  return out;
}

std::vector<int32_t> ChatEncoder::prompt(const Conversation& conversation) const {
  Conversation normal = conversation;
  normalise(normal);
  std::vector<int32_t> tokens;
  if (begins_with_bos(options_.chat->style) && tokenizer_->bos_id()) tokens.push_back(*tokenizer_->bos_id());
  for (const ChatRun& run : render_chat(std::move(normal), *options_.chat, ChatEnd::answer_follows))
    encode(run, tokens);
  for (int32_t& token : tokens) token = id_of(token);
  return tokens;
}

std::string ChatEncoder::description() const {
  std::string text = fmt::format("format {} bos {} eos {} pad {}", static_cast<int>(options_.format),
                                 options_.bos, options_.eos, pad_id_);
  if (!options_.chat) return text;
  const ChatOptions& c = *options_.chat;
  return text + fmt::format(" {} train_on {} date {} system {}", name_of(c.style),
                            static_cast<int>(c.train_on), c.date, c.system);
}

}  // namespace ottava::data
