#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "apps/step/step_io.h"
#include "core/data/mixed_loader.h"

namespace ottava {

/// The tokens that one data rank reads. Step after step takes global_batch samples in order; within a step,
/// micro-batch m of data rank d of D holds samples (m * D + d) * B to (m * D + d + 1) * B: the same samples
/// make a step on every layout. Of each sequence a rank keeps the chunks that ContextParallelGroup gives it,
/// in that order, with positions. Targets have been shifted before that, and document starts stay those of
/// the sequence.
class BatchSource {
 public:
  struct Options {
    int64_t batch = 1, micro_batches = 1;
    int data_rank = 0, data_size = 1;
    bool documents = false;  ///< whether tokens come with the starts of their documents
    int context_rank = 0, context_size = 1;
  };
  BatchSource(data::MixedLoader loader, Options options);
  /// Host memory that it takes for the tokens of a step.
  static int64_t bytes(const Options& options, int64_t sequence);

  /// Starts reading ahead for the step at this sample.
  void start(int64_t position) { loader_.start(position); }
  /// This rank's tokens of the step that begins at `position`; valid until the next call.
  const HostTokens& read(int64_t position);
  /// Turns the samples of the last read from number `end` on into zeros without targets.
  const HostTokens& leave_out_from(int64_t end);
  /// Targets of the last read that count towards the loss.
  int64_t valid_tokens() const { return valid_tokens_; }
  int64_t samples_per_step() const { return options_.batch * options_.micro_batches * options_.data_size; }

  /// For each of this rank's samples of the last read: its source, and how many of its targets on this rank
  /// count.
  std::span<const int32_t> sources() const { return sources_; }
  std::span<const int32_t> valid_tokens_of_samples() const { return valid_; }

  data::MixedLoader& loader() { return loader_; }
  double seconds_waited() const { return loader_.stats().seconds_waited; }

 private:
  data::MixedLoader loader_;
  Options options_;
  int64_t sequence_;
  data::TokenBatch rows_of(int64_t micro_batch);
  void keep_chunks(int64_t micro_batch);
  void count_valid();
  int64_t first_sample(int64_t micro_batch) const {
    return position_ + (micro_batch * options_.data_size + options_.data_rank) * options_.batch;
  }
  /// Calls visit(micro-batch, sample in it, index of the first token, number of tokens) for each contiguous
  /// run of tokens.
  void for_each_run(const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit) const;

  std::vector<int32_t> sources_, valid_, inputs_, targets_, document_starts_, positions_;
  /// One micro-batch before its chunks go to context parallel ranks: inputs, targets, document starts.
  std::vector<int32_t> whole_;
  HostTokens tokens_;
  int64_t valid_tokens_ = 0, position_ = 0;
};

}  // namespace ottava
