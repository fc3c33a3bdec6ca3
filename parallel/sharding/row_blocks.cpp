#include "parallel/sharding/row_blocks.h"

#include <utility>

#include "core/ops/elementwise.h"

namespace ottava {
namespace {

int around(const Communicator& ranks, int distance) {
  return (ranks.rank() + distance + ranks.size()) % ranks.size();
}

/// Of a matrix of all ranks' rows.
RowRange rows_of_rank(const Tensor& all, int rank, int size) {
  const int64_t n = all.shape[0] / size;
  return {rank * n, (rank + 1) * n};
}

Tensor slice(const Tensor& all, RowRange rows) { return all.slice(rows.begin, rows.end); }

}  // namespace

GatheredRows::GatheredRows(Stream& stream, Arena& arena, Communicator& ranks, std::vector<Allocation> locals,
                           std::string_view label)
    : rank_(ranks.rank()), locals_(std::move(locals)) {
  const int size = ranks.size();
  for (const Allocation& local : locals_) {
    const Tensor& mine = local;
    results_.push_back(arena.allocate(std::string(label) + ".gathered", mine.dtype,
                                      mine.shape.with_first(mine.shape[0] * size), MemoryCategory::scratch));
  }
  waits_.resize(1);
  for (int distance = 1; distance < size; ++distance) {
    const int to = around(ranks, -distance), from = around(ranks, distance);
    Group group(ranks);
    for (size_t k = 0; k < locals_.size(); ++k) {
      ranks.send(stream, {.tensor = locals_[k], .to = to, .label = label});
      const Tensor& all = results_[k];
      ranks.recv(stream, {.tensor = slice(all, rows_of_rank(all, from, size)), .from = from, .label = label});
    }
    waits_.push_back(group.end());
  }
  for (size_t k = 0; k < locals_.size(); ++k) {
    const Tensor& all = results_[k];
    copy(stream, locals_[k], slice(all, rows_of_rank(all, rank_, size)));
  }
}

RowRange GatheredRows::wait(Stream& stream, int i) const {
  waits_[i].wait(stream);
  return rows_of_rank(results_[0], (rank_ + i) % count(), count());
}

ScatteredRows::ScatteredRows(Arena& arena, Communicator& ranks, Allocation parts, std::string_view label)
    : ranks_(ranks), label_(label), parts_(std::move(parts)) {
  const Tensor& all = parts_;
  received_ =
      arena.allocate(label_ + ".received", all.dtype,
                     {all.rows() / ranks_.size() * (ranks_.size() - 1), all.cols()}, MemoryCategory::scratch);
}

RowRange ScatteredRows::block(int i) const {
  return rows_of_rank(parts_, around(ranks_, i + 1), ranks_.size());
}

// What comes in the i-th transaction is of the rank as far behind as the one that it goes to is ahead.
void ScatteredRows::send(Stream& stream, int i) {
  const int to = around(ranks_, i + 1), from = around(ranks_, -(i + 1));
  if (to == ranks_.rank()) return;
  Group group(ranks_);
  ranks_.send(stream, {.tensor = slice(parts_, block(i)), .to = to, .label = label_});
  ranks_.recv(stream, {.tensor = slice(received_, rows_of_rank(received_, i, ranks_.size() - 1)),
                       .from = from,
                       .label = label_});
  requests_.push_back(group.end());
}

Allocation ScatteredRows::sum(Stream& stream, Arena& arena, MemoryCategory category) {
  const Tensor own = slice(parts_, block(ranks_.size() - 1));
  Allocation out = arena.allocate(label_ + ".scattered", own.dtype, own.shape, category);
  for (const Request& request : requests_) request.wait(stream);
  AddInOrder add{.out = out};
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const int behind = (ranks_.rank() - rank + ranks_.size()) % ranks_.size();
    add.addends.push_back(
        behind == 0 ? own : slice(received_, rows_of_rank(received_, behind - 1, ranks_.size() - 1)));
  }
  add_in_order(stream, add);
  parts_.release();
  received_.release();
  return out;
}

}  // namespace ottava
