#include "apps/generate/answer.h"

#include "apps/generate/text_stream.h"
#include "core/contains.h"
#include "core/philox.h"

namespace ottava {

Answer write_answer(const AnswerOptions& o, const Tokenizer& tokenizer, Generator& generator,
                    std::span<const float> logits, std::vector<int32_t>& tokens, std::ostream& out) {
  const PhiloxStream random{.seed = o.seed, .stream = o.stream};
  TextStream text(o.stops);
  Answer answer;
  const auto write = [&](const std::string& more) {
    answer.text += more;
    out << more << std::flush;
  };
  while (!text.stopped()) {
    std::vector<float> likely(logits.begin(), logits.begin() + tokenizer.vocab_size());
    require_finite(likely);  // what the model gives, before the penalty makes something else of it
    if (o.repetition_penalty != 1) penalise_repetition(likely, tokens, o.repetition_penalty);
    const int32_t token =
        sample_token(likely.data(), tokenizer.vocab_size(), o.sampling, random.uniform(answer.drawn));
    ++answer.drawn;
    answer.is_stopped = contains(o.stop_tokens, token);
    if (answer.is_stopped) break;
    tokens.push_back(token);
    write(text.take(
        tokenizer.decode(std::span(&token, 1), {.special_tokens = DecodeOptions::SpecialTokens::drop})));
    answer.is_stopped = text.stopped();
    if (answer.drawn == o.max_tokens) break;
    if (!text.stopped()) logits = generator.next(token);
  }
  write(text.rest());
  out << std::endl;
  return answer;
}

}  // namespace ottava
