#pragma once

#include <cstdint>
#include <vector>

#include "core/data/packing.h"

namespace ottava {

/// The tokens of all documents of a segment, in order, encoded by all threads of parallel_for(). Throws the
/// encoder's error for the first document that it refuses.
std::vector<std::vector<int32_t>> encoded_segment(const data::DocumentEncoder& encoder,
                                                  const data::Segment& segment);

}  // namespace ottava
