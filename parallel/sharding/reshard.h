#pragma once

namespace ottava {

/// When the parameters of a unit, gathered for its turn, are reduced to shards again.
enum class Reshard {
  automatic,  ///< as `always`: the last unit's forward and backward are one pass, in which it stays whole
  always,     ///< after each pass that reads them
  never,      ///< units stay whole from forward to the optimizer step (ZeRO-2)
};

}  // namespace ottava
