#pragma once

namespace ottava {

/// When the parameters of a unit, gathered for its turn, are reduced to shards again.
enum class Reshard {
  automatic,  ///< the last unit stays whole from forward to backward, where it is needed at once
  always,
  never,  ///< units stay whole from forward to the optimizer step (ZeRO-2)
};

}  // namespace ottava
