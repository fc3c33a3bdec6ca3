#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/evaluate/choice_task.h"
#include "apps/evaluate/token_losses.h"
#include "core/data/tokenizer/tokenizer.h"

namespace ottava {

/// The share p of n items, and its standard error as a sample: sqrt(p (1 - p) / (n - 1)).
struct Accuracy {
  double value = 0, standard_error = 0;
};

/// Scores of a multiple-choice task, as lm-evaluation-harness reports them.
struct ChoiceScores {
  std::string name;
  int64_t items = 0, choices = 0;
  Accuracy acc;            ///< the choice of the largest log-likelihood
  Accuracy acc_norm;       ///< the choice of the largest log-likelihood per character
  Accuracy acc_bytes;      ///< the choice of the largest log-likelihood per byte of UTF-8
  int64_t not_finite = 0;  ///< items with a log-likelihood that is not finite: counted as answered wrongly
  int64_t cut = 0;  ///< choices that with their context were longer than a window: the beginning is left out
  std::vector<std::vector<double>> log_likelihoods;  ///< of each item's choices
};

/// The choices of a task as a model sees them.
struct ChoiceTokens {
  /// Context and choice, item by item; the context is masked. Equal choices of an item are one document,
  /// since the last bits of a document's losses depend on where it lies in a window.
  std::vector<std::vector<int32_t>> documents;
  std::vector<int64_t> document_of;  ///< each choice
  int64_t cut = 0;                   ///< how many were longer than a window: their beginning is left out
};
/// Encodes choices for windows of `sequence` + 1 tokens, as the harness does: white space at the end of the
/// context moves to delimiter and choice. Context and choice are encoded together; of the resulting tokens,
/// as many as the context has by itself are replaced by the context's own. BOS comes first, as add_bos says,
/// or without it the tokenizer's files; special tokens in the context are recognised. Throws DataError for a
/// choice of which no token would be scored, because it became one token with the end of the context.
ChoiceTokens encode_choices(const ChoiceTask& task, const Tokenizer& tokenizer, int64_t sequence,
                            std::optional<bool> add_bos = {});

/// Rows of a pass and their length.
struct PassShape {
  int64_t batch = 1, sequence = 2048;
};
/// The smallest pass in which the choices are laid out as in one of `most`; smaller is better, since a pass
/// is always computed whole. The sequence is a multiple of 64, or that of `most`.
PassShape smallest_pass(std::span<const ChoiceTokens> tasks, PassShape most);

/// Asks a model to choose. Choices share windows. Of equal scores the first choice's counts, as in the
/// harness; equal choices have equal scores.
ChoiceScores score_choices(const ChoiceTask& task, const ChoiceTokens& tokens, const TokenLosses& model);

/// "hellaswag: acc 31.1% +- 0.5, acc_norm 33.0% +- 0.5, acc_bytes 32.8% +- 0.5 (10042 items)".
std::string to_text(const ChoiceScores& scores);

}  // namespace ottava
