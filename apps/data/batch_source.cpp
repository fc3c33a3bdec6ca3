#include "apps/data/batch_source.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/ops/cross_entropy.h"

namespace ottava {

static_assert(data::kNoTarget == kIgnoreIndex);

BatchSource::BatchSource(data::MixedLoader loader, Options options)
    : loader_(std::move(loader)),
      options_(options),
      sequence_(loader_.sources()[0].loader->options().seq_len) {
  const int64_t samples = options_.batch * options_.micro_batches,
                count = samples * (sequence_ / options_.context_size);
  sources_.resize(samples);
  valid_.resize(samples);
  inputs_.resize(count);
  targets_.resize(count);
  if (options_.documents) document_starts_.resize(count);
  if (options_.documents || options_.context_size > 1) positions_.resize(count);
  if (options_.context_size > 1) whole_.resize(3 * options_.batch * sequence_);
  tokens_ = {inputs_, targets_, document_starts_, positions_};
}

int64_t BatchSource::bytes(const Options& o, int64_t sequence) {
  const int64_t samples = o.batch * o.micro_batches, count = samples * (sequence / o.context_size),
                arrays = 2 + (o.documents ? 1 : 0) + (o.documents || o.context_size > 1 ? 1 : 0),
                whole = o.context_size > 1 ? 3 * o.batch * sequence : 0;
  return size_of(DType::i32) * (2 * samples + arrays * count + whole);
}

// Where the loader puts a micro-batch: its place, or what keep_chunks() takes it from.
data::TokenBatch BatchSource::rows_of(int64_t m) {
  const int64_t rows = options_.batch * sequence_;
  if (options_.context_size > 1)
    return {whole_.data(), whole_.data() + rows, options_.documents ? whole_.data() + 2 * rows : nullptr};
  return {inputs_.data() + m * rows, targets_.data() + m * rows,
          options_.documents ? document_starts_.data() + m * rows : nullptr};
}

void BatchSource::keep_chunks(int64_t m) {
  const int64_t chunks = 2 * options_.context_size, chunk = sequence_ / chunks,
                rows = options_.batch * sequence_;
  int64_t to = m * rows / options_.context_size;
  for (int64_t k : {int64_t{options_.context_rank}, chunks - 1 - options_.context_rank}) {
    for (int64_t b = 0; b < options_.batch; ++b, to += chunk) {
      const int32_t* from = whole_.data() + b * sequence_ + k * chunk;
      std::copy_n(from, chunk, inputs_.data() + to);
      std::copy_n(from + rows, chunk, targets_.data() + to);
      if (options_.documents) std::copy_n(from + 2 * rows, chunk, document_starts_.data() + to);
      for (int64_t i = 0; i < chunk; ++i) positions_[to + i] = static_cast<int32_t>(k * chunk + i);
    }
  }
}

// Chunks are ordered by micro-batch, half of the sequence, sample.
void BatchSource::for_each_run(const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit) const {
  const int64_t halves = options_.context_size > 1 ? 2 : 1,
                chunk = sequence_ / (halves * options_.context_size);
  int64_t at = 0;
  for (int64_t m = 0; m < options_.micro_batches; ++m) {
    for (int64_t half = 0; half < halves; ++half) {
      for (int64_t b = 0; b < options_.batch; ++b, at += chunk) visit(m, b, at, chunk);
    }
  }
}

void BatchSource::count_valid() {
  std::ranges::fill(valid_, 0);
  for_each_run([&](int64_t m, int64_t b, int64_t at, int64_t count) {
    const auto targets = targets_.begin() + at;
    valid_[m * options_.batch + b] +=
        static_cast<int32_t>(count - std::count(targets, targets + count, kIgnoreIndex));
  });
  valid_tokens_ = std::accumulate(valid_.begin(), valid_.end(), int64_t{0});
}

const HostTokens& BatchSource::leave_out_from(int64_t end) {
  for_each_run([&](int64_t m, int64_t b, int64_t at, int64_t count) {
    if (first_sample(m) + b < end) return;
    std::fill_n(inputs_.begin() + at, count, 0);
    std::fill_n(targets_.begin() + at, count, kIgnoreIndex);
  });
  count_valid();
  return tokens_;
}

const HostTokens& BatchSource::read(int64_t position) {
  position_ = position;
  for (int64_t m = 0; m < options_.micro_batches; ++m) {
    loader_.read(first_sample(m), options_.batch, rows_of(m), sources_.data() + m * options_.batch);
    if (options_.context_size > 1) keep_chunks(m);
  }
  if (options_.documents) {
    for (size_t i = 0; i < positions_.size(); ++i) {
      if (options_.context_size == 1) positions_[i] = static_cast<int32_t>(i % sequence_);
      positions_[i] -= document_starts_[i];
    }
  }
  count_valid();
  return tokens_;
}

}  // namespace ottava
