#pragma once

#include "apps/decide/decide.h"

namespace ottava {

/// The decision about linear layers.
inline constexpr const char* kBf16Matmul = "cpu.bf16_matmul";

/// Settles cpu.bf16_matmul and cpu.bf16_attention of a run on the CPU that computes in bf16, into
/// experiment.shape.cpu_products. Under auto a decision in `saved` is followed. Without one rank 0 measures,
/// if every rank has bf16 instructions and a micro-batch has at least kFewestFlops; else each rank has
/// usual_products(). Every rank makes the call. Throws ConfigError, on all ranks, if `direct` is asked for or
/// was decided and a rank lacks the instructions, and if what was decided is neither direct nor widened.
void settle_cpu_products(Experiment& experiment, Communicator& control, Device device,
                         const Decisions& saved);

/// Sets those of the two keys that `config` leaves to auto as they were decided elsewhere. Throws ConfigError
/// for a decision that is neither direct nor widened.
void follow_cpu_products(const Decisions& decided, CpuConfig& config);

/// Those of the two that are left to a measurement, each with the shapes for the usual way and for the other.
std::vector<OpenDecision> open_cpu_products(const Experiment& experiment);

/// FLOPs of a micro-batch on the mean rank below which there is nothing to gain: a tenth of a second.
inline constexpr double kFewestFlops = 2e10;

}  // namespace ottava
