#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/evaluate/choice_task.h"
#include "apps/train/step_io.h"
#include "core/data/tokenizer/tokenizer.h"

namespace ottava {

/// How a model is asked for losses, and by how many ranks.
struct TokenLosses {
  int64_t batch = 1, sequence = 2048;  ///< rows of a pass and their length
  int rank = 0, ranks = 1;             ///< that divide the passes among them; all make equally many
  bool share_windows = true;           ///< documents do not see each other; false: a window for each choice
  /// Losses [batch * sequence] of a pass, 0 where they do not count.
  std::function<void(const HostTokens& tokens, std::span<float> losses)> pass;
  /// Over all ranks that see different tokens, those that share them too; absent: there is one rank.
  std::function<void(std::span<double> sums)> add_up = {};
  std::optional<bool> add_bos = {};  ///< in front of texts; absent: as the tokenizer's files say
};

/// A share of items, and the standard error of its being a sample: sqrt(p (1 - p) / (n - 1)).
struct Accuracy {
  double value = 0, standard_error = 0;
};

/// What lm-evaluation-harness says of a multiple-choice task.
struct ChoiceScores {
  std::string name;
  int64_t items = 0, choices = 0;
  Accuracy acc;            ///< the choice of the largest log-likelihood
  Accuracy acc_norm;       ///< of the largest one per character
  Accuracy acc_bytes;      ///< of the largest one per byte of UTF-8
  int64_t not_finite = 0;  ///< items with a log-likelihood that is not finite: counted as answered wrongly
  int64_t cut =
      0;  ///< choices with their context that were longer than a window: their beginning is left out
  std::vector<std::vector<double>> log_likelihoods;  ///< of each item's choices
};

/// The choices of a task as a model sees them.
struct ChoiceTokens {
  std::vector<std::vector<int32_t>> documents;  ///< context and choice, item by item; the context is masked
  int64_t cut = 0;                              ///< of them longer than a window: their beginning is left out
};
/// For windows of `sequence` + 1 tokens. Throws as score_choices() does.
ChoiceTokens encode_choices(const ChoiceTask& task, const Tokenizer& tokenizer, int64_t sequence,
                            std::optional<bool> add_bos = {});

/// Rows of a pass and their length.
struct PassShape {
  int64_t batch = 1, sequence = 2048;
};
/// The smallest pass in which the choices lie as they do in one of `most`: a pass is computed whole, whatever
/// its windows hold. Sequences are a multiple of 64, or the longest.
PassShape smallest_pass(std::span<const ChoiceTokens> tasks, PassShape most);

/// Asks a model to choose. A choice is scored as the harness does: white space at the end of the context
/// moves over to delimiter and choice; both are encoded together, and of these tokens as many as the context
/// has by itself give way to the context's own. BOS stands in front as add_bos says;
/// special tokens in the context are read as such. Choices share windows. Throws DataError for a choice of
/// which no token would be scored, because it became one with the context's last.
ChoiceScores score_choices(const ChoiceTask& task, const Tokenizer& tokenizer, const TokenLosses& model);
/// The same of choices that are encoded already.
ChoiceScores score_choices(const ChoiceTask& task, const ChoiceTokens& tokens, const TokenLosses& model);

/// "hellaswag: acc 31.1% +- 0.5, acc_norm 33.0% +- 0.5, acc_bytes 32.8% +- 0.5 (10042 items)".
std::string to_text(const ChoiceScores& scores);

}  // namespace ottava
