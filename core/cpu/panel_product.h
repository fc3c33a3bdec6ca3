#pragma once

#include <cstdint>

#include "core/cpu/lines_ahead.h"

namespace ottava::cpu {

/// The B [k,n] of a product, cut into panels of this many columns: element (p, j) lies at p * kPanelColumns +
/// j % kPanelColumns of panel j / kPanelColumns. Columns past n are zero.
inline constexpr int64_t kPanelColumns = 32;
inline int64_t panels_of(int64_t columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }

/// C[m,n] = A[m,k] B[k,n], or C += that, in f32. The terms of each sum are added in the order of k, and the
/// sum is added to C at the end, whatever m and n are; so the bits do not depend on how C is divided among
/// calls.
struct PanelProduct {
  /// Element (i, p) at i * a_row + p * a_depth; in a product of groups as pack_groups() leaves them, without
  /// distances.
  const float* a = nullptr;
  int64_t a_row = 0, a_depth = 0;
  const float* b = nullptr;  ///< panels
  int64_t b_panel = 0;       ///< elements from one panel to the next
  /// from one of a panel's rows to the next; more where B is a row-major matrix
  int64_t b_depth = kPanelColumns;
  float* c = nullptr;
  int64_t c_row = 0;  ///< elements from one row to the next
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
  MatrixAhead ahead[2];  ///< fetched by all products but attention's, whose panels are near
};

}  // namespace ottava::cpu
