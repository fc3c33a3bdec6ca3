#include "parallel/checkpoint/snapshot.h"

#include <cstring>

#include "core/cuda/runtime.h"
#include "core/parallel_for.h"
#include "core/sum_of.h"

namespace ottava::checkpoint {
namespace {

size_t bytes_of(const HeldRun& run) {
  return static_cast<size_t>(run.rectangle.numel()) * size_of(run.memory.dtype);
}

// All threads: training waits for it.
void copy_on_host(const std::vector<HeldRun>& runs, const std::vector<char*>& places) {
  struct Piece {
    char* to;
    const char* from;
    size_t bytes;
  };
  constexpr size_t kPiece = 1 << 20;
  std::vector<Piece> pieces;
  for (size_t r = 0; r < runs.size(); ++r) {
    for (size_t begin = 0, bytes = bytes_of(runs[r]); begin < bytes; begin += kPiece)
      pieces.push_back({places[r] + begin, static_cast<const char*>(runs[r].memory.data) + begin,
                        std::min(kPiece, bytes - begin)});
  }
  parallel_for(std::ssize(pieces), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      std::memcpy(piece.to, piece.from, piece.bytes);
    }
  });
}

}  // namespace

Snapshot::~Snapshot() {
  try {
    if (copies_) copies_->synchronize();
  } catch (const Error&) {  // a GPU that failed copies nothing any more
  }
}

void Snapshot::reserve(Device device, int64_t bytes) {
  if (static_cast<int64_t>(memory_.bytes()) >= bytes) return;
  memory_ = {};
  memory_ = device.type == DeviceType::cuda && kind_ == Memory::pinned
                ? Buffer::pinned(device, static_cast<size_t>(bytes))
                : Buffer({DeviceType::cpu, 0}, static_cast<size_t>(bytes));
}

std::vector<HeldRun> Snapshot::take(const Layout& layout, std::vector<HeldRun> runs,
                                    const TrainedParameters& parameters) {
  std::erase_if(runs, [](const HeldRun& run) { return !run.is_owner; });
  const size_t bytes = sum_of(runs, bytes_of);
  reserve(parameters.stream ? parameters.stream->device() : Device{DeviceType::cpu, 0},
          static_cast<int64_t>(bytes));
  std::vector<char*> places;
  char* next = static_cast<char*>(memory_.data());
  for (const HeldRun& run : runs) {
    places.push_back(next);
    next += bytes_of(run);
  }
  end_.reset();
  if (parameters.stream) {
    enqueue(layout, runs, places, parameters);
  } else if (parameters.copy) {
    for (size_t r = 0; r < runs.size(); ++r)
      parameters.copy(places[r], runs[r].memory.data, bytes_of(runs[r]));
  } else {
    copy_on_host(runs, places);
  }
  for (size_t r = 0; r < runs.size(); ++r) runs[r].memory.data = places[r];
  return runs;
}

void Snapshot::enqueue(const Layout& layout, std::vector<HeldRun>& runs, const std::vector<char*>& places,
                       const TrainedParameters& parameters) {
  const Device device = parameters.stream->device();
  if (!copies_) copies_ = Stream::cuda(device.index);
  Event written(device);
  written.record(*parameters.stream);
  written.wait(*copies_);
  auto unit_of = [&](const HeldRun& run) {
    return parameters.specs[static_cast<size_t>(layout.tensors[run.tensor].spec)].unit;
  };
  for (size_t first = 0, r = 0; r < runs.size(); ++r) {
    cuda::copy(places[r], runs[r].memory.data, bytes_of(runs[r]), copies_->native());
    if (r + 1 < runs.size() && unit_of(runs[r + 1]) == unit_of(runs[r])) continue;
    auto arrived = std::make_shared<Event>(device);
    arrived->record(*copies_);
    for (; first <= r; ++first) runs[first].arrived = arrived;
  }
  if (kind_ == Memory::pageable) return copies_->synchronize();
  end_.emplace(device);
  end_->record(*copies_);
}

}  // namespace ottava::checkpoint
