#pragma once

#include <cstdint>
#include <vector>

#include "core/data/packing.h"

namespace ottava {

struct EncodedSegment {
  std::vector<std::vector<int32_t>> tokens;  ///< of each document
  int64_t text_bytes = 0;                    ///< of all documents, as DocumentEncoder::append() counts them
};
/// All documents of a segment, in order, encoded by all threads of parallel_for(). Throws the encoder's error
/// for the first document that it refuses.
EncodedSegment encoded_segment(const data::DocumentEncoder& encoder, const data::Segment& segment);

}  // namespace ottava
