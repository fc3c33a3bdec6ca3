#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/evaluate/token_losses.h"

namespace ottava {

/// How well a model predicts a text, as lm-evaluation-harness measures it (loglikelihood_rolling).
struct TextLoss {
  std::string name;
  double nats = 0;                               ///< the sum over all tokens
  int64_t documents = 0, tokens = 0, bytes = 0;  ///< tokens that were predicted, and the text's bytes

  double loss() const;  ///< nats per token
  double perplexity() const;
  double bits_per_byte() const;
};

/// Windows of at most length + 1 tokens in which each token of a document, but the first, is predicted once.
/// They follow each other; the last one begins earlier, with tokens that are masked, so that what it predicts
/// has as much in front of it as a window holds.
std::vector<std::vector<int32_t>> text_windows(const std::vector<int32_t>& document, int64_t length);

/// Adds the losses of documents, each of which begins with a token that is not predicted (BOS), in windows of
/// at most `window` tokens to predict, which is no more than a pass has in a row.
void add_documents(const std::vector<std::vector<int32_t>>& documents, int64_t window,
                   const TokenLosses& model, TextLoss& to);

/// "wiki.txt: loss 3.1234, perplexity 22.72, bits per byte 1.0321 (1234 tokens and 4567 bytes of 3
/// documents)".
std::string to_text(const TextLoss& loss);

}  // namespace ottava
