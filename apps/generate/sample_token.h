#pragma once

#include <cstdint>
#include <span>

namespace ottava {

/// The next token from logits: softmax(logits / temperature) over the top_k likeliest and, of these, the
/// likeliest that together reach top_p; `uniform` in [0, 1) chooses. Ties in order of ids.
/// Throws NumericsError as require_finite() does.
struct Sampling {
  double temperature = 1;  ///< 0: the likeliest token
  int64_t top_k = 0;       ///< 0: all
  double top_p = 1;
};
int32_t sample_token(const float* logits, int64_t vocab, const Sampling& sampling, double uniform);

/// Throws NumericsError for a logit that is not finite.
void require_finite(std::span<const float> logits);

/// Divides the positive logits of the tokens in `seen` by `penalty` and multiplies the others by it, each
/// once (arXiv:1909.05858, section 4.1, as in Hugging Face's repetition_penalty). Logits [V].
void penalise_repetition(std::span<float> logits, std::span<const int32_t> seen, double penalty);

}  // namespace ottava
