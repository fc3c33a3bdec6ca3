#pragma once

#include <cstdint>
#include <vector>

#include "core/data/packing.h"

namespace ottava {

/// Tokens of all documents of a segment, in order, by all threads of parallel_for. Throws what the encoder
/// does of the first document that it refuses.
std::vector<std::vector<int32_t>> encoded_segment(const data::DocumentEncoder& encoder,
                                                  const data::Segment& segment);

}  // namespace ottava
