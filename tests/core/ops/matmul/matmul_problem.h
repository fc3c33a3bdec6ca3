#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/ops/matmul/matmul.h"
#include "tests/support/devices.h"

// Names like Size and kSizes are others' too, and the tests of all folders are one program for GPUs.
namespace ottava::test::inline products {

/// y [N,O], x [N,K], weight [O,K].
struct Size {
  int64_t n, o, k;
};
// One element; odd everything; whole vectors; more than one tile and panel with remainders (the widening
// path); tall.
inline const Size kSizes[] = {{1, 1, 1},       {3, 5, 7},      {16, 32, 64}, {65, 129, 33},
                              {300, 270, 520}, {1000, 24, 40}, {2, 640, 96}};
inline constexpr MatmulKind kKinds[] = {MatmulKind::forward, MatmulKind::input_gradient,
                                        MatmulKind::weight_gradient};

struct Problem {
  Shape a, b, out;
  int64_t terms;
};
inline Problem problem_of(MatmulKind kind, Size s) {
  switch (kind) {
    case MatmulKind::forward:
      return {{s.n, s.k}, {s.o, s.k}, {s.n, s.o}, s.k};
    case MatmulKind::input_gradient:
      return {{s.n, s.o}, {s.o, s.k}, {s.n, s.k}, s.o};
    default:
      return {{s.n, s.o}, {s.n, s.k}, {s.o, s.k}, s.n};
  }
}

/// The product by its definition, and the sums of the absolute values of its terms.
struct Reference {
  std::vector<double> product, size;
};
inline Reference reference(MatmulKind kind, const Problem& p, const std::vector<float>& a,
                           const std::vector<float>& b) {
  const int64_t rows = p.out[0], cols = p.out[1];
  Reference r{std::vector<double>(static_cast<size_t>(rows * cols)),
              std::vector<double>(static_cast<size_t>(rows * cols))};
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < p.terms; ++k) {
        double x =
            a[static_cast<size_t>(kind == MatmulKind::weight_gradient ? k * p.a[1] + i : i * p.a[1] + k)];
        double y = b[static_cast<size_t>(kind == MatmulKind::forward ? j * p.b[1] + k : k * p.b[1] + j)];
        sum += x * y;
        size += std::abs(x * y);
      }
      r.product[static_cast<size_t>(i * cols + j)] = sum;
      r.size[static_cast<size_t>(i * cols + j)] = size;
    }
  }
  return r;
}

/// A workspace for the stream, as large as the problem asks for.
class Workspace {
 public:
  Workspace(Stream& stream, const Matmul& args)
      : buffer_(stream, DType::u8, {matmul_workspace_bytes(stream, args)}) {
    set_matmul_workspace(stream, buffer_);
  }

 private:
  DeviceBuffer buffer_;
};

}  // namespace ottava::test::inline products
