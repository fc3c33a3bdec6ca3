#pragma once

#include <string>

#include "parallel/pipeline/pipeline_layout.h"

namespace ottava {

/// "1F1B, 4 ranks with 1 stage each, 8 micro-batches: 27.3% of the time idle where stages take the same
/// time".
std::string describe(const PipelineLayout& pipeline);
/// What a rank holds and keeps: "embedding, layers 0 to 6; 4 micro-batches in flight at most"; with several
/// stages "layers 0 to 1 and layers 4 to 5; ...".
std::string describe_rank(const PipelineLayout& pipeline, int rank);

}  // namespace ottava
