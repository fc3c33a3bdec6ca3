#pragma once

#include "apps/config/experiment.h"

namespace ottava {

/// The step of rank 0 of this mesh as record_first_rank() has it, of which three micro-batches were recorded
/// (four where reductions cross into the next): those between are alike. Memory is packed for these.
StepPlan sample_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh);

}  // namespace ottava
