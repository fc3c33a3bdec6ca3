#include "apps/train/batch_source.h"

#include <algorithm>
#include <utility>

#include "core/ops/cross_entropy.h"

namespace ottava {

static_assert(data::kNoTarget == kIgnoreIndex);

BatchSource::BatchSource(data::MixedLoader loader, Options options)
    : loader_(std::move(loader)),
      options_(options),
      sequence_(loader_.sources()[0].loader->options().seq_len) {
  const auto samples = static_cast<size_t>(options_.batch * options_.micro_batches),
             count = samples * static_cast<size_t>(sequence_);
  sources_.resize(samples);
  inputs_.resize(count);
  targets_.resize(count);
  if (options_.documents) {
    document_starts_.resize(count);
    positions_.resize(count);
  }
  tokens_ = {inputs_, targets_, document_starts_, positions_};
}

const HostTokens& BatchSource::read(int64_t position) {
  const int64_t rows = options_.batch * sequence_;
  for (int64_t m = 0; m < options_.micro_batches; ++m) {
    const int64_t first = position + (m * options_.data_size + options_.data_rank) * options_.batch;
    data::TokenBatch out{inputs_.data() + m * rows, targets_.data() + m * rows,
                         options_.documents ? document_starts_.data() + m * rows : nullptr};
    loader_.read(first, options_.batch, out, sources_.data() + m * options_.batch);
  }
  for (size_t i = 0; i < positions_.size(); ++i)
    positions_[i] = static_cast<int32_t>(static_cast<int64_t>(i) % sequence_) - document_starts_[i];
  valid_tokens_ =
      static_cast<int64_t>(targets_.size()) - std::count(targets_.begin(), targets_.end(), kIgnoreIndex);
  return tokens_;
}

}  // namespace ottava
