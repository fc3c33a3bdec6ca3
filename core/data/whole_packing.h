#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/data/packing.h"
#include "core/philox.h"

namespace ottava::data {

/// Packs whole documents into windows of seq_len + 1 tokens. Documents go, the longest first, each into the
/// fullest window that has room for it (best fit decreasing), so the number of windows depends only on
/// lengths. The rest of a window is filled by a document of pads. The first token of every document is
/// masked, as pads are.
struct WholePacking {
  int64_t seq_len = 0;
  int32_t pad_id = 0;
  bool share_windows = true;  ///< false: each document has a window of its own
  /// of documents: which of equally long ones comes first; empty: 0, 1, ...
  std::span<const int32_t> order = {};
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
