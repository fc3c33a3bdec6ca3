#include "apps/evaluate/token_losses.h"

#include <algorithm>

namespace ottava {

int32_t leading_token(const Tokenizer& tokenizer) {
  return tokenizer.bos_id().value_or(tokenizer.eos_id().value_or(0));
}

std::vector<double> losses_of_documents(const data::WholePacked& whole, size_t documents,
                                        const TokenLosses& model) {
  const int64_t windows = whole.packed.windows(model.sequence), row = model.sequence,
                passes = (windows + model.batch * model.ranks - 1) / (model.batch * model.ranks);
  std::vector<double> sums(documents, 0.0);
  const size_t size = model.batch * row;
  std::vector<int32_t> inputs(size), targets(size), starts(size), positions(size);
  std::vector<float> losses(size);
  for (int64_t pass = 0; pass < passes; ++pass) {
    std::ranges::fill(inputs, 0);
    std::ranges::fill(targets, data::kNoTarget);
    std::ranges::fill(starts, 0);
    const int64_t first = (pass * model.ranks + model.rank) * model.batch,
                  last = std::min(first + model.batch, windows);
    for (int64_t w = first; w < last; ++w) {
      const int64_t at = (w - first) * row;
      whole.packed.copy_window(w, row, inputs.data() + at, targets.data() + at, starts.data() + at);
    }
    for (size_t i = 0; i < size; ++i)
      positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % row) - starts[i];
    model.pass({inputs, targets, starts, positions}, losses);
    const std::vector<int64_t>& begins = whole.packed.document_starts;
    for (int64_t w = first; w < last; ++w) {
      const int64_t begin = w * (row + 1);
      auto d = std::ranges::upper_bound(begins, begin) - begins.begin() - 1;
      for (int64_t i = 0; i < row; ++i) {
        while (d + 1 < std::ssize(begins) && begins[d + 1] <= begin + i) ++d;
        const size_t at = (w - first) * row + i;
        if (targets[at] != data::kNoTarget) sums[whole.sources[d]] += losses[at];
      }
    }
  }
  if (model.add_up) model.add_up(sums);
  return sums;
}

}  // namespace ottava
