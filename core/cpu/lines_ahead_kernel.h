#pragma once

// For kernel files only.

#include "core/cpu/lines_ahead.h"
#include "core/cpu/vec.h"

namespace ottava::cpu::OTTAVA_ISA {

/// Fetches a matrix in as many equal shares as there will be calls.
class LinesAhead {
 public:
  LinesAhead(const MatrixAhead& matrix, int64_t calls) : matrix_(matrix) {
    if (matrix.rows == 0) return;
    lines_ = (matrix.bytes + kLine - 1) / kLine;
    share_ = (matrix.rows * lines_ + calls - 1) / calls;
  }
  void fetch() {
    for (int64_t i = 0; i < share_ && row_ < matrix_.rows; ++i) {
      const char* at = matrix_.at + row_ * matrix_.stride + line_ * kLine;
      if (matrix_.use == MatrixAhead::Use::read) {
        OTTAVA_ISA::fetch(at, 1);
      } else {
        fetch_target(const_cast<char*>(at), 1);
      }
      if (++line_ == lines_) line_ = 0, ++row_;
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  const MatrixAhead& matrix_;
  int64_t lines_ = 0, share_ = 0, row_ = 0, line_ = 0;
};

}  // namespace ottava::cpu::OTTAVA_ISA
