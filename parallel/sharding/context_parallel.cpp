#include "parallel/sharding/context_parallel.h"

#include "core/ops/chunk_order.h"
#include "core/ops/elementwise.h"

namespace ottava {

ContextParallelGroup::ContextParallelGroup(Communicator& communicator)
    : communicator_(&communicator), rank_(communicator.rank()), size_(communicator.size()) {}

ContextParallelGroup::Gathering ContextParallelGroup::gather_keys_values(Stream& stream, Arena& arena,
                                                                         const Tensor& qkv,
                                                                         const KeyHeads& which) const {
  const int64_t rows = qkv.rows(), width = which.width();
  Gathering g{
      .mine = arena.allocate("keys and values", qkv.dtype, {rows, 2 * width}, MemoryCategory::scratch),
      .all = arena.allocate("keys and values.gathered", qkv.dtype, {rows * size_, 2 * width},
                            MemoryCategory::scratch)};
  copy_columns(stream, qkv, which.keys(), g.mine, 0);
  copy_columns(stream, qkv, which.values(), g.mine, width);
  g.request = communicator_->all_gather(stream, {.send = g.mine, .recv = g.all, .label = "keys and values"});
  return g;
}

Allocation ContextParallelGroup::in_order(Stream& stream, Arena& arena, Gathering g, int64_t batch) const {
  const Tensor& all = g.all;
  Allocation ordered =
      arena.allocate("keys and values.in order", all.dtype, all.shape, MemoryCategory::scratch);
  g.request.wait(stream);
  order_by_position(stream, {.by_rank = all, .by_position = ordered, .ranks = size_, .batch = batch});
  return ordered;
}

ContextParallelGroup::Scattering ContextParallelGroup::scatter_key_value_gradients(Stream& stream,
                                                                                   Arena& arena,
                                                                                   Allocation gradients,
                                                                                   int64_t batch) const {
  const Tensor& ordered = gradients;
  Scattering s{.partial = arena.allocate("key and value gradients.by rank", DType::f32, ordered.shape,
                                         MemoryCategory::scratch)};
  order_by_rank(stream, {.by_rank = s.partial, .by_position = ordered, .ranks = size_, .batch = batch});
  const Shape mine{ordered.rows() / size_, ordered.cols()};
  gradients.release();
  s.mine = arena.allocate("key and value gradients.scattered", DType::f32, mine, MemoryCategory::scratch);
  s.request = communicator_->reduce_scatter(
      stream, {.send = s.partial, .recv = s.mine, .label = "key and value gradients"});
  return s;
}

void ContextParallelGroup::finish(Stream& stream, Scattering s, const Tensor& dqkv,
                                  const KeyHeads& which) const {
  s.request.wait(stream);
  copy_columns(stream, s.mine, {0, which.width()}, dqkv, which.keys().begin);
  copy_columns(stream, s.mine, {which.width(), 2 * which.width()}, dqkv, which.values().begin);
}

}  // namespace ottava
