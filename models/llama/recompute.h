#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/activation_checkpoint_config.h"

namespace ottava {

/// Which parts of a block's forward pass are computed again in backward. Every mode gives bitwise the same
/// gradients.
enum class Recompute {
  nothing,
  elementwise,        ///< outputs of the norms and of the activation: cheap to make, a third of the memory
  all_but_attention,  ///< all but the block's input and the output of attention, which takes as much
  block,              ///< all but the block's input
};

/// Whether backward runs products of the forward pass again.
constexpr bool recomputes_products(Recompute r) {
  return r == Recompute::all_but_attention || r == Recompute::block;
}

/// What each block computes again: nothing (none), elementwise outputs (selective "op"), all but attention
/// (selective "all_but_attention"), every n-th block whole (selective n), or all blocks whole (full). Of auto
/// it is the first of recompute_choices().
std::vector<Recompute> resolve_recompute(const ActivationCheckpointConfig& config, int64_t layers);

/// What activation_checkpoint.mode auto chooses from, with what each block computes again: the fastest, which
/// takes most memory, comes first, the one that takes least comes last. Of few blocks some are alike.
struct RecomputeChoice {
  std::string name;  ///< "op, all but attention of 1 in 4 blocks"
  std::vector<Recompute> blocks;
  bool is_mode = false;  ///< the same in all blocks, as another mode has it
};
std::vector<RecomputeChoice> recompute_choices(int64_t layers);

}  // namespace ottava
