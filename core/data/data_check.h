#pragma once

#include <cstdint>
#include <string>

#include "core/data/packing.h"

namespace ottava::data {

/// What a look through the data found. A record is a line of JSON lines.
struct DataCheck {
  int64_t bytes = 0;        ///< looked at, decompressed
  int64_t documents = 0;    ///< in them
  bool is_whole = false;    ///< all of the data was looked at
  int64_t bad_records = 0;  ///< no object with the text; only where these are to be skipped
  int64_t ill_formed = 0;   ///< documents with bytes that are not UTF-8, which are kept as they are
  std::string first_ill_formed;
};

/// Looks at everything but tokens of text, in blocks spread over the corpus, for about `seconds` (one block
/// at least): records are parsed, ids of shards compared with the vocabulary, UTF-8 checked. Throws DataError
/// as DocumentEncoder::append() does.
DataCheck check_data(const Corpus& corpus, const DocumentEncoder& encoder, double seconds);

}  // namespace ottava::data
