#include "parallel/checkpoint/snapshot.h"

#include <algorithm>

#include "core/cuda/runtime.h"
#include "core/io/file.h"
#include "core/io/float_cast.h"
#include "core/sum_of.h"
#include "core/threads/parallel_for.h"
#include "parallel/checkpoint/checksum.h"

namespace ottava::checkpoint {
namespace {

size_t bytes_of(const HeldRun& run) { return run.rectangle.numel() * size_of(run.memory.dtype); }

int64_t offset_in_file(const Layout& layout, const HeldRun& run) {
  const SafetensorsEntry& entry = layout.tensors[run.tensor].entry;
  const StoredFile& file = layout.files[static_cast<size_t>(layout.tensors[run.tensor].file)];
  const int64_t first = run.rectangle.row_begin * entry.columns() + run.rectangle.column_begin;
  return file.data_begin() + entry.begin + first * static_cast<int64_t>(size_of(*entry.dtype));
}

std::vector<char*> places_of(const Layout& layout, const std::vector<HeldRun>& runs, char* memory) {
  std::vector<char*> places;
  int64_t next = 0, gaps = 0;
  for (const HeldRun& run : runs) {
    const int64_t gap = ((offset_in_file(layout, run) - next) % File::kBlock + File::kBlock) % File::kBlock;
    if (gaps + gap <= Snapshot::kGapBytes) next += gap, gaps += gap;
    places.push_back(memory + next);
    next += static_cast<int64_t>(bytes_of(run));
  }
  return places;
}

// By all threads, since training waits for it. Checksums are made here too, so that every thread takes its
// part, and weights are looked at while they are in this core's cache: the thread that writes need not read
// the copies.
void copy_on_host(const Layout& layout, std::vector<HeldRun>& runs, const std::vector<char*>& places) {
  constexpr int64_t kPiece = 1 << 16;  // elements, which fit a core's second cache
  struct Piece {
    size_t run;
    TensorRectangle rows;
    uint64_t checksum = 0;
    bool is_finite = true;
  };
  std::vector<Piece> pieces;
  for (size_t r = 0; r < runs.size(); ++r) {
    const TensorRectangle& all = runs[r].rectangle;
    const int64_t rows =
        std::max<int64_t>(kPiece / std::max<int64_t>(all.column_end - all.column_begin, 1), 1);
    for (int64_t row = all.row_begin; row < all.row_end; row += rows)
      pieces.push_back({r, {row, std::min(row + rows, all.row_end), all.column_begin, all.column_end}});
  }
  parallel_for_index(std::ssize(pieces), 1, [&](int64_t p) {
    Piece& piece = pieces[p];
    const HeldRun& run = runs[piece.run];
    const StoredTensor& tensor = layout.tensors[run.tensor];
    const size_t element = size_of(run.memory.dtype);
    const TensorRectangle& all = run.rectangle;
    const int64_t before = (piece.rows.row_begin - all.row_begin) * (all.column_end - all.column_begin);
    for_each_span(tensor.entry.columns(), piece.rows, kPiece, [&](const ElementSpan& span) {
      const size_t at = static_cast<size_t>(before + span.local) * element,
                   count = static_cast<size_t>(span.count);
      const char* from = static_cast<const char*>(run.memory.data) + at;
      piece.checksum += copy_with_checksum(places[piece.run] + at, from, {element, span.first, count});
      if (!tensor.moment) piece.is_finite &= find_non_finite({run.memory.dtype, from}, count) == count;
    });
  });
  // If the stored type differs, neither would be that of the stored bits.
  for (HeldRun& run : runs) {
    const StoredTensor& tensor = layout.tensors[run.tensor];
    if (run.memory.dtype != *tensor.entry.dtype) continue;
    run.checksum = 0;
    run.is_finite = !tensor.moment;
  }
  for (const Piece& piece : pieces) {
    HeldRun& run = runs[piece.run];
    if (run.checksum) *run.checksum += piece.checksum;
    run.is_finite &= piece.is_finite;
  }
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
  memory_ = device.type == DeviceType::cuda && kind_ == Memory::pinned ? Buffer::pinned(device, bytes)
                                                                       : Buffer({DeviceType::cpu, 0}, bytes);
}

std::vector<HeldRun> Snapshot::take(const Layout& layout, std::vector<HeldRun> runs,
                                    const TrainedParameters& parameters) {
  std::erase_if(runs, [](const HeldRun& run) { return !run.is_owner; });
  const size_t bytes = sum_of(runs, bytes_of);
  reserve(parameters.stream ? parameters.stream->device() : Device{DeviceType::cpu, 0},
          static_cast<int64_t>(bytes) + kGapBytes);
  const std::vector<char*> places = places_of(layout, runs, static_cast<char*>(memory_.data()));
  end_.reset();
  if (parameters.stream) {
    enqueue(layout, runs, places, parameters);
  } else if (parameters.copy) {
    for (size_t r = 0; r < runs.size(); ++r)
      parameters.copy(places[r], runs[r].memory.data, bytes_of(runs[r]));
  } else {
    copy_on_host(layout, runs, places);
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
  auto unit_of = [&](const HeldRun& run) { return parameters.specs[layout.tensors[run.tensor].spec].unit; };
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
