#include "parallel/sharding/tensor_parallel.h"

#include <string>
#include <utility>

#include "core/ops/elementwise.h"

namespace ottava {

TensorParallelGroup::TensorParallelGroup(Communicator& communicator)
    : communicator_(&communicator), rank_(communicator.rank()), size_(communicator.size()) {}

Allocation TensorParallelGroup::Transfer::wait(Stream& stream) {
  request.wait(stream);
  source.release();
  return std::move(result);
}

TensorParallelGroup::Transfer TensorParallelGroup::start_gather_rows(Stream& stream, Arena& arena,
                                                                     const Allocation& x,
                                                                     std::string_view label,
                                                                     MemoryCategory category) const {
  if (size_ == 1) return {.result = x};
  const Tensor& local = x;
  Allocation all = arena.allocate(std::string(label) + ".gathered", local.dtype,
                                  local.shape.with_first(local.shape[0] * size_), category);
  const Request request = communicator_->all_gather(stream, {.send = local, .recv = all, .label = label});
  return {.source = x, .result = std::move(all), .request = request};
}

TensorParallelGroup::Transfer TensorParallelGroup::start_reduce_scatter_rows(Stream& stream, Arena& arena,
                                                                             const Allocation& x,
                                                                             std::string_view label,
                                                                             MemoryCategory category) const {
  if (size_ == 1) return {.result = x};
  const Tensor& all = x;
  Allocation local = arena.allocate(std::string(label) + ".scattered", all.dtype,
                                    {all.rows() / size_, all.cols()}, category);
  const Request request = communicator_->reduce_scatter(stream, {.send = all, .recv = local, .label = label});
  return {.source = x, .result = std::move(local), .request = request};
}

Allocation TensorParallelGroup::gather_rows(Stream& stream, Arena& arena, const Allocation& x,
                                            std::string_view label, MemoryCategory category) const {
  return start_gather_rows(stream, arena, x, label, category).wait(stream);
}

Allocation TensorParallelGroup::reduce_scatter_rows(Stream& stream, Arena& arena, const Allocation& x,
                                                    std::string_view label, MemoryCategory category) const {
  return start_reduce_scatter_rows(stream, arena, x, label, category).wait(stream);
}

Allocation TensorParallelGroup::gather_columns(Stream& stream, Arena& arena, const Tensor& x,
                                               std::string_view label) const {
  const int64_t rows = x.rows(), columns = x.cols();
  Allocation whole = arena.allocate(std::string(label) + ".gathered", x.dtype, {rows, columns * size_},
                                    MemoryCategory::scratch);
  Allocation blocks = arena.allocate(std::string(label) + ".blocks", x.dtype, {rows * size_, columns},
                                     MemoryCategory::scratch);
  communicator_->all_gather(stream, {.send = x, .recv = blocks, .label = label}).wait(stream);
  for (int r = 0; r < size_; ++r) {
    copy_columns(stream, blocks.tensor().slice(r * rows, (r + 1) * rows), {}, whole, r * columns);
  }
  return whole;
}

void TensorParallelGroup::all_reduce(Stream& stream, const Tensor& x, ReduceOp op,
                                     std::string_view label) const {
  if (size_ > 1) communicator_->all_reduce(stream, {.send = x, .op = op, .label = label}).wait(stream);
}

}  // namespace ottava
