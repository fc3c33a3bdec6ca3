#pragma once

#include "apps/decide/decide.h"

namespace ottava {

/// Settles cpu.bf16_matmul and cpu.bf16_attention of a run on the CPU that computes in bf16:
/// experiment.shape.cpu_products. Under auto they are decisions where every rank has bf16 instructions and a
/// micro-batch has kFewestFlops: one in `saved` is followed, else rank 0 measures. Elsewhere under auto each
/// rank has usual_products(). Every rank makes the call. Throws ConfigError, on all ranks, where direct is
/// asked for or was decided and a rank has no such instructions.
void settle_cpu_products(Experiment& experiment, Communicator& control, Device device,
                         const Decisions& saved);

/// What `config` leaves to auto of them, as it was decided elsewhere. Throws ConfigError for a decision that
/// is neither direct nor widened.
void follow_cpu_products(const Decisions& decided, CpuConfig& config);

/// Those of them that are left to a measurement: the shape with the usual way first, then with the other.
std::vector<OpenDecision> open_cpu_products(const Experiment& experiment);

/// FLOPs of a micro-batch on one rank below which there is nothing to gain: a tenth of a second.
inline constexpr double kFewestFlops = 2e10;

}  // namespace ottava
