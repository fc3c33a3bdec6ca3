#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/data/packing.h"
#include "core/philox.h"

namespace ottava::data {

/// Whole documents in windows of seq_len + 1 tokens. The longest document goes first, each into the fullest
/// window that has room for it (best fit decreasing), so that how many windows there are depends on the
/// lengths only. What is left of a window is a document of pads; the first token of every document is masked,
/// as pads are.
struct WholePacking {
  int64_t seq_len = 0;
  int32_t pad_id = 0;
  bool share_windows = true;  ///< false: each document has one of its own
  std::span<const int32_t> order =
      {};  ///< of documents: which of equally long ones comes first; empty: 0, 1, ...
  std::optional<PhiloxStream> windows = {};  ///< permutes the windows; absent: as they were opened
};
struct WholePacked {
  PackedTokens packed;
  std::vector<int32_t> sources;       ///< which document begins at each of packed.document_starts; -1: pads
  int64_t documents = 0, tokens = 0;  ///< in windows, without pads
  int64_t too_long = 0, dropped_tokens = 0;  ///< documents that fit no window, and their tokens
};
/// Empty documents are left out.
WholePacked pack_whole(const std::vector<std::vector<int32_t>>& documents, const WholePacking& how);

}  // namespace ottava::data
