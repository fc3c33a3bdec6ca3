#include "apps/generate/chat_session.h"

#include <algorithm>

namespace ottava {

ChatSession::ChatSession(const data::ChatEncoder& encoder, const Tokenizer& tokenizer, Generator& generator,
                         std::string system)
    : encoder_(encoder), tokenizer_(tokenizer), generator_(generator) {
  if (!system.empty())
    conversation_.messages.push_back({.role = data::Role::system, .content = std::move(system)});
}

int64_t ChatSession::say(std::string_view text, const AnswerOptions& options, std::ostream& out) {
  data::Conversation conversation = conversation_;
  conversation.messages.push_back({.role = data::Role::user, .content = std::string(text)});
  std::vector<int32_t> tokens = encoder_.prompt(conversation);
  const auto prompt = std::ssize(tokens);
  if (prompt + options.max_tokens > generator_.capacity()) {
    fail<TooLong>(
        "generate",
        "the conversation has {} tokens, which together with an answer of up to {} exceed the context "
        "of {}: shorten the message, {}lower --max-tokens, or raise --context",
        prompt, options.max_tokens, generator_.capacity(), held_.empty() ? "" : "start a new conversation, ");
  }
  // The last token is always computed, because its logits are needed.
  const auto same = std::ranges::mismatch(held_, tokens).in1 - held_.begin();
  const int64_t kept = std::min<int64_t>(same, prompt - 1);
  held_.resize(kept);  // all that is certain, should the rest throw
  std::span<const float> logits;
  if (kept == 0) {
    logits = generator_.prompt(std::span(tokens).first(1));
  } else {
    generator_.rewind(kept);
  }
  for (int64_t i = std::max<int64_t>(kept, 1); i < prompt; ++i) logits = generator_.next(tokens[i]);
  const int64_t drawn = write_answer(options, tokenizer_, generator_, logits, tokens, out).drawn;
  held_.assign(tokens.begin(), tokens.begin() + generator_.length());
  conversation.messages.push_back(
      {.role = data::Role::assistant,
       .content = tokenizer_.decode(std::span(tokens).subspan(prompt),
                                    {.special_tokens = DecodeOptions::SpecialTokens::drop})});
  conversation_ = std::move(conversation);
  return drawn;
}

}  // namespace ottava
