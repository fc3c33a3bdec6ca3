#pragma once

namespace ottava {

/// When the parameters of a unit, gathered for its turn, are reduced to shards again.
enum class Reshard {
  automatic,  ///< as `always` or, in a pipeline, `never`
  /// After each pass that reads them; the last unit's forward and backward are one pass. Not in a pipeline.
  always,
  never,  ///< units stay whole from forward to the optimizer step (ZeRO-2)
};

}  // namespace ottava
