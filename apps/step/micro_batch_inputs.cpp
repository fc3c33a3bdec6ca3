#include "apps/step/micro_batch_inputs.h"

#include <algorithm>
#include <string_view>

#include "core/ops/elementwise.h"

namespace ottava {
namespace {

std::vector<std::span<const int32_t>> share_of(const HostTokens& tokens, size_t arrays, int64_t index,
                                               int64_t count) {
  std::vector<std::span<const int32_t>> share;
  for (const auto& all : {tokens.inputs, tokens.targets, tokens.positions, tokens.document_start}) {
    if (share.size() < arrays) share.push_back(all.subspan(index * count, count));
  }
  return share;
}

}  // namespace

MicroBatchInputs::MicroBatchInputs(const TrainingShape& shape, Stream& stream, Arena& arena,
                                   int context_parallel)
    : stream_(stream), holds_all_(shape.pipeline.is_on()) {
  const int64_t count = rows_of_rank(shape.batch, shape.sequence, context_parallel).tokens(),
                of_validation =
                    rows_of_rank(shape.validation_batch, shape.validation_sequence, context_parallel)
                        .tokens(),
                held = holds_all_ ? shape.micro_batches * count : count;
  std::vector<std::string_view> names{"tokens", "targets"};
  if (shape.block_causal || context_parallel > 1) names.push_back("positions");
  if (shape.block_causal) names.push_back("document starts");
  for (std::string_view name : names)
    places_.push_back(arena.persistent(name, DType::i32, {std::max(held, of_validation)}));
  if (stream.target().is_gpu())
    ring_ = std::make_unique<InputRing>(stream, arena, names, std::max(count, of_validation));
}

void MicroBatchInputs::send(const HostTokens& tokens, int64_t index, int64_t count) {
  if (!ring_) return;
  if (stream_.is_meta()) return ring_->upload({});
  ring_->upload(share_of(tokens, places_.size(), index, count));
}

MicroBatch MicroBatchInputs::receive(const HostTokens& tokens, int64_t index, const RankRows& rows) {
  const int64_t count = rows.tokens();
  std::vector<Tensor> places;
  const int64_t first = holds_all_ ? index * count : 0;
  for (const Tensor& place : places_)
    places.push_back(place.slice(first, first + count).reshape({rows.batch, rows.sequence}));
  if (ring_) {
    ring_->take(places);
  } else if (stream_.type() == DeviceType::cpu) {
    const auto share = share_of(tokens, places_.size(), index, count);
    for (size_t i = 0; i < places.size(); ++i)
      cast(stream_, {const_cast<int32_t*>(share[i].data()), DType::i32, places[i].shape}, places[i]);
  }
  places.resize(4);
  return {.tokens = places[0], .targets = places[1], .document_start = places[3], .positions = places[2]};
}

}  // namespace ottava
