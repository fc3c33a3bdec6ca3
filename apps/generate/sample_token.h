#pragma once

#include <cstdint>
#include <span>

namespace ottava {

/// How a token is drawn from logits: by softmax(logits / temperature) over the top_k likeliest tokens, of
/// these the likeliest that together reach top_p, and of these the ones at least min_p times as likely as the
/// likeliest of all (arXiv:2407.01082). Ties in order of ids.
struct Sampling {
  double temperature = 1;  ///< 0: the likeliest token
  int64_t top_k = 0;       ///< 0: all
  double top_p = 1;
  double min_p = 0;  ///< 0: all
};
/// The next token; `uniform` in [0, 1) chooses. Throws NumericsError as require_finite() does.
int32_t sample_token(const float* logits, int64_t vocab, const Sampling& sampling, double uniform);

/// Throws NumericsError for a logit that is not finite.
void require_finite(std::span<const float> logits);

/// Divides the positive logits of the tokens in `seen` by `penalty` and multiplies the others by it, each
/// once (arXiv:1909.05858, section 4.1, as in Hugging Face's repetition_penalty). Logits [V].
void penalise_repetition(std::span<float> logits, std::span<const int32_t> seen, double penalty);

}  // namespace ottava
