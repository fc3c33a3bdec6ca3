#pragma once

#include <cstdint>

namespace ottava::cuda {

/// Which row, and which of its packs, a thread of a team has.
struct RowPart {
  int64_t row, packs;  ///< packs of this row: none past the last row
  int member;          ///< has packs member, member + the team's size, ...
};

}  // namespace ottava::cuda
