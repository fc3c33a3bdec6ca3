#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "apps/generate/generator.h"
#include "apps/generate/sample_token.h"
#include "core/data/tokenizer/tokenizer.h"

namespace ottava {

/// How a text is continued.
struct AnswerOptions {
  Sampling sampling;
  double repetition_penalty = 1;
  int64_t max_tokens = 128;
  std::vector<int32_t> stop_tokens;
  std::vector<std::string> stops;  ///< the text ends before the first of these that the model adds
  uint64_t seed = 0, stream = 0;   ///< of the sampling
};

/// What the model has added.
struct Answer {
  std::string text;         ///< as it was written, without its line end
  int64_t drawn = 0;        ///< tokens
  bool is_stopped = false;  ///< by a stop token or text, not by max_tokens
};
/// Appends to `tokens` what the model adds to them, without stop tokens, and writes its text to `out` as it
/// comes. `logits` are those of what follows `tokens`, which the generator holds; afterwards it holds all
/// tokens that were drawn too, but the last.
Answer write_answer(const AnswerOptions& options, const Tokenizer& tokenizer, Generator& generator,
                    std::span<const float> logits, std::vector<int32_t>& tokens, std::ostream& out);

}  // namespace ottava
