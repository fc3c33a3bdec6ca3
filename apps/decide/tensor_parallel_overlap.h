#pragma once

#include "apps/decide/decide.h"

namespace ottava {

/// Settles parallelism.enable_async_tensor_parallel, if it is on and there are tensor-parallel ranks: for
/// each linear layer of a block, whether its products and transfers run in blocks (experiment.shape's
/// overlap). What a step does in such a layer, forward and backward, is carried out both ways in memory of
/// its own, with all ranks' transfers. The faster way becomes a decision
/// ("parallelism.enable_async_tensor_parallel wqkv": "blocks" or "bulk"), rank 0's for all ranks. Those in
/// `saved` are followed if all layers have one. Every rank makes the call. Throws ConfigError, on all ranks,
/// for a saved decision that is neither.
void settle_overlap(Experiment& experiment, RankGroups& ranks, Device device, const Decisions& saved);

/// The open decision: its outcomes are blocks in all of these layers, and in none.
std::vector<OpenDecision> open_overlap(const Experiment& experiment);

}  // namespace ottava
