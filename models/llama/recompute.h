#pragma once

namespace ottava {

/// Which parts of a block's forward pass are computed again in backward. Every mode gives bitwise the same
/// gradients.
enum class Recompute {
  nothing,
  elementwise,  ///< outputs of the norms and of the activation: cheap to make, a third of the memory
  block,        ///< all but the block's input
};

}  // namespace ottava
