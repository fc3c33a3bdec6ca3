#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "models/llama/forward_model.h"

namespace ottava {

/// Generates one sequence, token by token, on one rank.
class Generator {
 public:
  struct Options {
    LlamaConfig model;
    DType compute = DType::bf16;
    std::vector<int64_t> prompt_lengths{1};  ///< in tokens, of the prompts that will be given
    int64_t capacity = 1;                    ///< prompt and generated tokens together
    int64_t longest_prompt() const { return *std::ranges::max_element(prompt_lengths); }
  };
  /// Plans and takes memory. Throws ConfigError if a prompt does not fit the capacity.
  Generator(
      Options options, Device device, const ForwardModel::Allow& allow = [](const MemoryPlan&) {});

  /// To be filled by the caller, which then calls refresh_compute_copies().
  Fsdp& parameters() { return model_.parameters(); }
  Stream& stream() { return model_.stream(); }

  /// Starts over with a prompt of one of options.prompt_lengths; returns the logits [V] of what follows it,
  /// which stay until the next call. Throws ConfigError for another length.
  std::span<const float> prompt(std::span<const int32_t> tokens);
  /// Appends a token; returns the logits [V] of what follows. Throws ConfigError once capacity() is reached.
  std::span<const float> next(int32_t token);
  int64_t length() const { return length_; }
  int64_t capacity() const { return options_.capacity; }
  /// Forgets what comes after the first `length` tokens; 0 < length <= length().
  void rewind(int64_t length) { length_ = length; }

 private:
  void build(Arena& arena);
  void run(const StepContext& context, int64_t tokens, int64_t position);
  std::span<const float> fetch();

  Options options_;
  ForwardModel model_;
  std::vector<KeyValueCache> caches_;
  Tensor tokens_, positions_, logits_;
  std::vector<float> host_logits_;
  int64_t length_ = 0;
};

}  // namespace ottava
