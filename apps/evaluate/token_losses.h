#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "apps/step/step_io.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/data/whole_packing.h"

namespace ottava {

/// How a model is asked for losses, and on how many ranks.
struct TokenLosses {
  int64_t batch = 1, sequence = 2048;  ///< rows of a pass and their length
  int rank = 0, ranks = 1;             ///< ranks divide the passes; all make equally many
  /// documents in a window do not see each other; false: each has its own window
  bool share_windows = true;
  /// Computes the losses [batch * sequence] of a pass; 0 where they do not count.
  std::function<void(const HostTokens& tokens, std::span<float> losses)> pass;
  /// Sums over all ranks that divide or share the tokens; absent: there is one rank.
  std::function<void(std::span<double> sums)> add_up = {};
};

/// What stands in front of what is predicted first: BOS, or where a tokenizer has none EOS, as in
/// lm-evaluation-harness, or 0.
int32_t leading_token(const Tokenizer& tokenizer);

/// The sums of the losses of each of `documents` documents that were packed into `whole`: zeros for those
/// that fit no window.
std::vector<double> losses_of_documents(const data::WholePacked& whole, size_t documents,
                                        const TokenLosses& model);

}  // namespace ottava
