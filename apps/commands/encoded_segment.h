#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/corpus.h"
#include "core/data/packing.h"

namespace ottava {

struct EncodedSegment {
  std::vector<std::vector<int32_t>> tokens;  ///< of each document
  int64_t text_bytes = 0;                    ///< of all documents, as DocumentEncoder::append() counts them
};
/// All documents of a segment, in order, encoded by all threads of parallel_for(). Throws the encoder's error
/// for the first document that it refuses.
EncodedSegment encoded_segment(const data::DocumentEncoder& encoder, const data::Segment& segment);

/// Gives each segment of a corpus to `use`, in order of its files. Throws what reading and encoding throw.
void for_each_segment(const data::Corpus& corpus, const std::function<void(const data::Segment&)>& use);
void for_each_encoded_segment(const data::Corpus& corpus, const data::DocumentEncoder& encoder,
                              const std::function<void(const EncodedSegment&)>& use);

/// Throws a DataError of `command` if a file holds token ids, not text.
void refuse_tokenized(std::string_view command, const data::Corpus& corpus);

/// What find_data_files() finds, if it is text: refuse_tokenized(). Plain text is one document as far as a
/// block goes, not pieces to be shuffled.
data::Corpus open_text(std::string_view command, const std::string& source);

}  // namespace ottava
