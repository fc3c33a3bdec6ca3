#include "parallel/sharding/tensor_parallel.h"

#include <string>

#include "core/ops/elementwise.h"
#include "parallel/comm/communicator.h"

namespace ottava {

TensorParallelGroup::TensorParallelGroup(Communicator& communicator)
    : communicator_(&communicator), rank_(communicator.rank()), size_(communicator.size()) {}

Allocation TensorParallelGroup::gather_rows(Stream& stream, Arena& arena, const Allocation& x,
                                            std::string_view label, MemoryCategory category) const {
  if (size_ == 1) return x;
  const Tensor& local = x;
  const bool is_vector = local.shape.rank() == 1;
  const Shape whole = is_vector ? Shape{local.numel() * size_} : Shape{local.rows() * size_, local.cols()};
  Allocation all = arena.allocate(std::string(label) + ".gathered", local.dtype, whole, category);
  communicator_->all_gather(stream, {.send = local, .recv = all, .label = label}).wait(stream);
  return all;
}

Allocation TensorParallelGroup::reduce_scatter_rows(Stream& stream, Arena& arena, const Allocation& x,
                                                    std::string_view label, MemoryCategory category) const {
  if (size_ == 1) return x;
  const Tensor& all = x;
  Allocation local = arena.allocate(std::string(label) + ".scattered", all.dtype,
                                    {all.rows() / size_, all.cols()}, category);
  communicator_->reduce_scatter(stream, {.send = all, .recv = local, .label = label}).wait(stream);
  return local;
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
    copy_columns(stream, blocks.tensor().slice(r * rows, (r + 1) * rows), whole, r * columns);
  }
  return whole;
}

void TensorParallelGroup::all_reduce_max(Stream& stream, const Tensor& x, std::string_view label) const {
  if (size_ > 1)
    communicator_->all_reduce(stream, {.send = x, .recv = {}, .op = ReduceOp::max, .label = label})
        .wait(stream);
}

void TensorParallelGroup::all_reduce_sum(Stream& stream, const Tensor& x, std::string_view label) const {
  if (size_ > 1)
    communicator_->all_reduce(stream, {.send = x, .recv = {}, .op = ReduceOp::sum, .label = label})
        .wait(stream);
}

}  // namespace ottava
