#include "core/ops/elementwise.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/ops/elementwise_kernels.h"
#include "core/run_op.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

constexpr int64_t kGrain = 16384;  // elements per piece of work: 64 KiB of f32, some microseconds

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

void convert(const void* in, DType from, void* out, DType to, int64_t n) {
  const auto& kernels = cpu::elementwise_kernels();
  if (from == to) {
    std::memmove(out, in, n * size_of(from));
  } else if (from == DType::f32) {
    kernels.to_bf16(static_cast<const float*>(in), static_cast<bf16*>(out), n);
  } else {
    kernels.to_f32(static_cast<const bf16*>(in), static_cast<float*>(out), n);
  }
}

void cast_on_cpu(const Tensor& source, const Tensor& destination) {
  parallel_for(source.numel(), kGrain, [&](int64_t begin, int64_t end) {
    convert(source.at(begin), source.dtype, destination.at(begin), destination.dtype, end - begin);
  });
}

// A fixed number of pieces, whatever the number of threads, added in order.
void sum_on_cpu(const Tensor& x, const Tensor& out) {
  constexpr int64_t kPieces = 64;
  double sums[kPieces];
  auto kernel = cpu::elementwise_kernels().sum[x.dtype];
  const int64_t n = x.numel();
  parallel_for_index(kPieces, n < kGrain ? kPieces : 1, [&](int64_t i) {
    int64_t begin = n * i / kPieces, end = n * (i + 1) / kPieces;
    sums[i] = kernel(x.at(begin), end - begin);
  });
  double total = 0;
  for (double sum : sums) total += sum;
  float* cell = out.as<float>();
  *cell = static_cast<float>(*cell + total);
}

}  // namespace

void copy(Stream& stream, const Tensor& source, const Tensor& destination) {
  const bool has_shape = source.shape == destination.shape;
  if (!has_shape || source.dtype != destination.dtype) {
    fail<ShapeError>("copy", "source {} and destination {} differ: {}", describe(source),
                     describe(destination), has_shape ? "only cast converts" : "a copy needs the same shape");
  }
  cast(stream, source, destination);
}

void cast(Stream& stream, const Tensor& source, const Tensor& destination) {
  if (!(source.shape == destination.shape)) {
    fail<ShapeError>("cast", "shapes differ: source {}, destination {}", describe(source),
                     describe(destination));
  }
  if (source.dtype != destination.dtype && !(is_float(source.dtype) && is_float(destination.dtype))) {
    fail<ShapeError>("cast", "{} cannot become {}: only f32 and bf16 convert into each other",
                     name_of(source.dtype), name_of(destination.dtype));
  }
  run_op(stream, moving("cast", source.bytes() + destination.bytes()), cast, cast_on_cpu, cuda::cast, source,
         destination);
}

void fill_zero(Stream& stream, const Tensor& tensor) {
  const auto on_cpu = [&] {
    parallel_for(tensor.bytes(), 4 * kGrain, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<char*>(tensor.data) + begin, 0, end - begin);
    });
  };
  run_op(stream, moving("fill_zero", tensor.bytes()), fill_zero, on_cpu, cuda::fill_zero, tensor);
}

void add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out) {
  check_float("add", "a", a);
  const bool widens = a.dtype == DType::f32 && b.dtype == DType::bf16;
  widens ? check_tensor("add", "b", b, b.dtype, a.shape) : check_like("add", "b", b, "a", a);
  check_like("add", "out", out, "a", a);
  const auto on_cpu = [&] {
    const auto& kernels = cpu::elementwise_kernels();
    auto kernel = widens ? kernels.add_bf16 : kernels.add[a.dtype];
    parallel_for(a.numel(), kGrain, [&](int64_t begin, int64_t end) {
      kernel(a.at(begin), b.at(begin), out.at(begin), end - begin);
    });
  };
  run_op(stream, moving("add", 2 * a.bytes() + b.bytes()), add, on_cpu, cuda::add, a, b, out);
}

void add_in_order(Stream& stream, const AddInOrder& a) {
  constexpr std::string_view kOp = "add_in_order";
  if (a.addends.empty() || a.addends.size() > kMostAddends)
    fail<ShapeError>(kOp, "{} addends: expected 1 to {}", a.addends.size(), kMostAddends);
  check_float(kOp, "out", a.out);
  for (const Tensor& addend : a.addends) check_like(kOp, "an addend", addend, "out", a.out);
  const auto on_cpu = [&] {
    std::vector<const void*> addends;
    for (const Tensor& addend : a.addends) addends.push_back(addend.data);
    parallel_for(a.out.numel(), kGrain, [&](int64_t begin, int64_t end) {
      cpu::elementwise_kernels().add_in_order[a.out.dtype](addends, a.out.data, begin, end);
    });
  };
  const int64_t bytes = (std::ssize(a.addends) + 1) * a.out.bytes();
  run_op(stream, moving(kOp, bytes), add_in_order, on_cpu, cuda::add_in_order, a);
}

void copy_columns(Stream& stream, const Tensor& source, ColumnRange columns, const Tensor& destination,
                  int64_t column) {
  constexpr std::string_view kOp = "copy_columns";
  check_float(kOp, "source", source);
  check_float(kOp, "destination", destination);
  const MatrixRows from = rows_of(kOp, source, columns);
  if (source.shape.rank() != 2 || destination.shape.rank() != 2 || from.rows != destination.rows() ||
      column < 0 || column + from.cols > destination.cols()) {
    fail<ShapeError>(kOp, "source {} does not fit into destination {} from column {} on", describe(source),
                     describe(destination), column);
  }
  const MatrixRows to = rows_of(kOp, destination, {column, column + from.cols});
  const auto on_cpu = [&] {  // by elements, for matrices of few long rows
    parallel_for(from.rows * from.cols, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t count = 0; begin < end; begin += count) {
        const int64_t row = begin / from.cols, col = begin % from.cols;
        count = std::min(end - begin, from.cols - col);
        convert(from.at(row, col), from.dtype, to.at(row, col), to.dtype, count);
      }
    });
  };
  run_op(
      stream, {.op = kOp, .bytes = from.bytes() + to.bytes()}, copy_columns, on_cpu,
      [&] { cuda::copy_columns(stream, from, to); }, source, columns, destination, column);
}

void sum_into(Stream& stream, const Tensor& x, const Tensor& out) {
  check_float("sum_into", "x", x);
  check_tensor("sum_into", "out", out, DType::f32, {1});
  run_op(stream, moving("sum_into", x.bytes()), sum_into, sum_on_cpu, cuda::sum_into, x, out);
}

}  // namespace ottava
