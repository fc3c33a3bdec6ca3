#include "apps/train/prompt_samples.h"

#include <algorithm>

#include "apps/config/resolved_model.h"
#include "apps/generate/prompt_tokens.h"
#include "apps/generate/sample_token.h"
#include "core/philox.h"

namespace ottava {

std::vector<std::vector<int32_t>> encode_prompts(const Experiment& e) {
  std::vector<std::vector<int32_t>> prompts;
  if (!e.config.evaluation.enable) return prompts;
  for (const std::string& text : e.config.evaluation.prompts) {
    prompts.push_back(prompt_tokens(*e.tokenizer, text, texts_begin_with_bos(e)));
    if (prompts.back().empty()) {
      fail<ConfigError>("evaluation",
                        "prompt {} is empty and the tokenizer has no BOS token: write some text in it",
                        prompts.size());
    }
    const auto length = std::ssize(prompts.back());
    const std::optional<int64_t> window = e.shape.model.sliding_window;
    if (const int64_t tokens = length + e.config.evaluation.max_new_tokens; window && tokens > *window) {
      fail<ConfigError>(
          "evaluation",
          "prompt {} of {} tokens and max_new_tokens {} make {} tokens, but the model supports {} "
          "(sliding_window in config.json): lower evaluation.max_new_tokens, or shorten that prompt of "
          "evaluation.prompts",
          prompts.size(), length, e.config.evaluation.max_new_tokens, tokens, *window);
    }
  }
  return prompts;
}

std::string length_warning(const std::vector<std::vector<int32_t>>& prompts, const Experiment& e) {
  if (prompts.empty()) return {};
  const auto size = [](const std::vector<int32_t>& prompt) { return std::ssize(prompt); };
  const int64_t tokens = std::ranges::max(prompts, {}, size).size() + e.config.evaluation.max_new_tokens,
                longest = longest_sequence(e.config, e.shape.model);
  if (tokens <= longest) return {};
  return fmt::format(
      "evaluation.prompts and evaluation.max_new_tokens make up to {} tokens, but the model is meant for {} "
      "(model.max_seq_len, or max_position_embeddings of its checkpoints): text beyond them may be nonsense",
      tokens, longest);
}

// Every rank makes the same number of passes, whenever texts end, because passes gather parameters.
std::vector<std::string> continue_prompts(const std::vector<std::vector<int32_t>>& prompts,
                                          const Experiment& e, TrainingEngine& engine,
                                          const std::function<void()>& before_each) {
  const EvaluationConfig& c = e.config.evaluation;
  const int64_t vocabulary = e.tokenizer->vocab_size(), row = e.shape.model.vocab_size;
  struct Text {
    std::vector<int32_t> tokens;
    bool has_ended = false;
    std::string error;  // why it ended early
  };
  std::vector<Text> texts;
  size_t longest = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    texts.push_back({prompt});
    longest = std::max(longest, prompt.size());
  }
  std::vector<int32_t> now(prompts.size());
  for (size_t position = 0; position + 1 < longest + c.max_new_tokens; ++position) {
    before_each();
    for (size_t i = 0; i < texts.size(); ++i)
      now[i] = position < texts[i].tokens.size() ? texts[i].tokens[position] : 0;
    const std::vector<float> logits = engine.next_logits(now, position);
    for (size_t i = 0; i < texts.size(); ++i) {
      Text& text = texts[i];
      const int64_t added = text.tokens.size() - prompts[i].size();
      if (text.has_ended || position + 1 != text.tokens.size()) continue;
      const PhiloxStream random{.seed = static_cast<uint64_t>(e.config.training.seed), .stream = i};
      int32_t token = 0;
      try {
        token = sample_token(logits.data() + i * row, vocabulary, {.temperature = c.temperature},
                             random.uniform(added));
      } catch (const NumericsError& error) {  // a sample is no reason to end the run
        text.has_ended = true;
        text.error = fmt::format(" ({})", error.what());
        continue;
      }
      text.has_ended = token == e.tokenizer->eos_id();
      if (!text.has_ended) text.tokens.push_back(token);
      if (added + 1 == c.max_new_tokens) text.has_ended = true;
    }
  }
  std::vector<std::string> out;
  for (size_t i = 0; i < texts.size(); ++i) {
    out.push_back(e.tokenizer->decode(std::span(texts[i].tokens).subspan(prompts[i].size()),
                                      {.special_tokens = DecodeOptions::SpecialTokens::drop}) +
                  texts[i].error);
  }
  return out;
}

}  // namespace ottava
