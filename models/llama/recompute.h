#pragma once

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

}  // namespace ottava
