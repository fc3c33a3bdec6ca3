#include "apps/generate/sample_token.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "core/error.h"

namespace ottava {

void require_finite(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i]))
      fail<NumericsError>("generate",
                          "the model gives token {} the logit {}, so its weights are broken or this "
                          "precision is too low for them: use an earlier checkpoint or float32",
                          i, logits[i]);
  }
}

int32_t sample_token(const float* logits, int64_t vocab, const Sampling& s, double uniform) {
  require_finite({logits, static_cast<size_t>(vocab)});
  if (s.temperature <= 0) return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
  std::vector<int32_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  const int64_t keep = s.top_k > 0 ? std::min(s.top_k, vocab) : vocab;
  std::partial_sort(order.begin(), order.begin() + keep, order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  order.resize(keep);
  std::vector<double> weight(order.size());
  double total = 0;
  for (size_t i = 0; i < order.size(); ++i)
    total += weight[i] = std::exp((logits[order[i]] - logits[order[0]]) / s.temperature);
  size_t count = 0;
  double kept = 0;
  // The likeliest has weight 1.
  while (count < order.size() && (count == 0 || (kept < s.top_p * total && weight[count] >= s.min_p)))
    kept += weight[count++];
  double left = uniform * kept;
  for (size_t i = 0; i < count; ++i) {
    left -= weight[i];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

void penalise_repetition(std::span<float> logits, std::span<const int32_t> seen, double penalty) {
  std::vector<int32_t> tokens(seen.begin(), seen.end());
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (int32_t token : tokens) {
    float& logit = logits[token];
    logit = static_cast<float>(logit > 0 ? logit / penalty : logit * penalty);
  }
}

}  // namespace ottava
