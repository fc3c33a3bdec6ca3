#include "apps/generate/answer.h"

#include "apps/generate/text_stream.h"
#include "core/contains.h"
#include "core/philox.h"

namespace ottava {

int64_t write_answer(const AnswerOptions& o, const Tokenizer& tokenizer, Generator& generator,
                     std::span<const float> logits, std::vector<int32_t>& tokens, std::ostream& out) {
  const PhiloxStream random{.seed = o.seed, .stream = o.stream};
  TextStream text(o.stops);
  int64_t added = 0;
  while (!text.stopped()) {
    std::vector<float> likely(logits.begin(), logits.begin() + tokenizer.vocab_size());
    require_finite(likely);  // what the model gives, before the penalty makes something else of it
    if (o.repetition_penalty != 1) penalise_repetition(likely, tokens, o.repetition_penalty);
    const int32_t token =
        sample_token(likely.data(), tokenizer.vocab_size(), o.sampling, random.uniform(added));
    ++added;
    if (contains(o.stop_tokens, token)) break;
    tokens.push_back(token);
    out << text.take(
               tokenizer.decode(std::span(&token, 1), {.special_tokens = DecodeOptions::SpecialTokens::drop}))
        << std::flush;
    if (added == o.max_tokens) break;
    if (!text.stopped()) logits = generator.next(token);
  }
  out << text.rest() << std::endl;
  return added;
}

}  // namespace ottava
