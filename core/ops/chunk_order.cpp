#include "core/ops/chunk_order.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/ops/chunk_order_kernels.h"
#include "core/round_up.h"
#include "core/run_op.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

void copy_on_cpu(const ChunkCopy& c) {
  constexpr int64_t kPiece = 1 << 16;  // bytes
  const int64_t pieces = pieces_of(c.chunk_bytes, kPiece);
  parallel_for_index(c.chunks() * pieces, 1, [&](int64_t i) {
    const int64_t position = i / pieces, rank = place_by_rank(position, c.ranks, c.batch),
                  offset = i % pieces * kPiece;
    const auto at = [&](bool by_position) {
      return (by_position ? position : rank) * c.chunk_bytes + offset;
    };
    std::memcpy(static_cast<char*>(c.to) + at(c.to_position),
                static_cast<const char*>(c.from) + at(!c.to_position),
                std::min(kPiece, c.chunk_bytes - offset));
  });
}

enum class Into { position, rank };

void copy(std::string_view op, Stream& stream, const ChunkOrder& args, Into order) {
  const bool to_position = order == Into::position;
  const Tensor& from = to_position ? args.by_rank : args.by_position;
  const Tensor& to = to_position ? args.by_position : args.by_rank;
  check_like(op, "by_position", args.by_position, "by_rank", args.by_rank);
  const int64_t chunks = 2 * args.ranks * args.batch;
  if (args.ranks < 1 || args.batch < 1 || from.shape.rank() != 2 || from.rows() % chunks != 0) {
    fail<ShapeError>(op, "{} is not a matrix of {} chunks for each of {} sequences", describe(from),
                     2 * args.ranks, args.batch);
  }
  const ChunkCopy c{.from = from.data,
                    .to = to.data,
                    .ranks = args.ranks,
                    .batch = args.batch,
                    .chunk_bytes = from.bytes() / chunks,
                    .to_position = to_position};
  run_op(
      stream, moving(op, 2 * from.bytes()), to_position ? order_by_position : order_by_rank,
      [&] { copy_on_cpu(c); }, [&] { cuda::copy_chunks(stream, c); }, args);
}

}  // namespace

void order_by_position(Stream& stream, const ChunkOrder& args) {
  copy("order_by_position", stream, args, Into::position);
}
void order_by_rank(Stream& stream, const ChunkOrder& args) {
  copy("order_by_rank", stream, args, Into::rank);
}

}  // namespace ottava
