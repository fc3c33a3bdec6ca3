#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "apps/config/training_shape.h"
#include "models/llama/recompute.h"

namespace ottava {

/// What activation_checkpoint.mode auto chooses from, for each rank of a pipeline by itself: the first ranks
/// keep the activations of most micro-batches at a time, the last ones have room to recompute less. Without a
/// pipeline there is one rank.
class RecomputeByRank {
 public:
  /// For each rank one of recompute_choices(), which are spread over that rank's own blocks.
  using Choices = std::vector<size_t>;

  explicit RecomputeByRank(const TrainingShape& shape);

  size_t ranks() const { return blocks_.size(); }
  /// The same choice on all ranks; 0 is the fastest.
  Choices on_all(size_t choice) const { return Choices(ranks(), choice); }
  /// How many there are of a rank.
  size_t count() const { return choices_[0].size(); }
  /// To the next choice, or to the next that is the same in all blocks.
  enum class Step { by_parts, by_modes };
  /// Makes this rank's choice the next one that recomputes more; false if there is none.
  bool recompute_more(Choices& choices, size_t rank, Step step) const;
  /// Makes this rank's choice the first one behind the mode before it.
  void recompute_less(Choices& choices, size_t rank) const;

  /// What each block of the model computes again.
  std::vector<Recompute> blocks(const Choices& choices) const;
  /// "op", or for ranks that differ "pp rank 0: op; pp ranks 1 to 3: none".
  std::string text(const Choices& choices) const;

 private:
  std::vector<std::vector<size_t>> blocks_;  ///< of each rank
  std::vector<std::vector<RecomputeChoice>> choices_;
};

}  // namespace ottava
