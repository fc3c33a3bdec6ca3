#include "parallel/checkpoint/writer.h"

#include "parallel/checkpoint/checksum.h"

namespace ottava::checkpoint {
namespace {

// Hands out the elements of a run piece by piece in the stored type, through host memory where they are
// elsewhere.
class Pieces {
 public:
  Pieces(const HeldRun& run, DType stored, const WriteShards& work)
      : run_(run), stored_(stored), work_(work) {}

  /// Of a piece, at most: those that are written from where they are keep a fast device busy.
  int64_t bytes() const {
    return work_.copy || run_.memory.dtype != stored_ ? kTransferBytes : 8 * kTransferBytes;
  }
  const void* at(const ElementSpan& span) {
    size_t bytes = static_cast<size_t>(span.count) * size_of(run_.memory.dtype);
    const void* piece = static_cast<const char*>(run_.memory.data) +
                        static_cast<size_t>(span.local) * size_of(run_.memory.dtype);
    if (work_.copy) {
      host_.resize(std::max(host_.size(), bytes));
      work_.copy(host_.data(), piece, bytes);
      piece = host_.data();
    }
    if (run_.memory.dtype == stored_) return piece;
    cast_.resize(std::max(cast_.size(), static_cast<size_t>(span.count) * size_of(stored_)));
    cast_floats({run_.memory.dtype, piece}, {stored_, cast_.data()}, static_cast<size_t>(span.count));
    return cast_.data();
  }

 private:
  const HeldRun& run_;
  DType stored_;
  const WriteShards& work_;
  std::vector<char> host_, cast_;
};

}  // namespace

void create_files(const Layout& layout, const std::string& folder) {
  for (const StoredFile& stored : layout.files) {
    File file = File::create(folder + "/" + stored.name);
    file.reserve(stored.bytes);
    file.write_at(stored.header.data(), stored.header.size(), 0);
    file.sync();
    file.close();
  }
}

std::vector<uint64_t> write_shards(const WriteShards& work) {
  const Layout& layout = *work.layout;
  std::vector<uint64_t> checksums(layout.tensors.size(), 0);
  File file;
  int open_file = -1;
  auto finish = [&] {
    if (open_file < 0) return;
    file.sync();
    file.close();
  };
  for (const HeldRun& run : work.runs) {
    if (!run.is_owner) continue;
    if (run.arrived) run.arrived->synchronize();
    const StoredTensor& tensor = layout.tensors[run.tensor];
    const StoredFile& stored = layout.files[static_cast<size_t>(tensor.file)];
    if (tensor.file != open_file) {
      finish();
      file = File::open_for_writing(work.folder + "/" + stored.name);
      open_file = tensor.file;
    }
    DType dtype = *tensor.entry.dtype;
    auto element_bytes = static_cast<int64_t>(size_of(dtype));
    int64_t begin = stored.data_begin() + tensor.entry.begin;
    checksums[run.tensor] += run.checksum.value_or(0);
    Pieces pieces(run, dtype, work);
    for_each_span(tensor.entry.columns(), run.rectangle, pieces.bytes() / 4, [&](const ElementSpan& span) {
      if (work.cancel != nullptr && *work.cancel)
        fail<FileError>("checkpoint", "saving into {} was stopped", work.folder);
      const void* piece = pieces.at(span);
      if (!run.checksum) checksums[run.tensor] += element_checksum(piece, range_of(dtype, span));
      file.write_uncached(piece, static_cast<size_t>(span.count * element_bytes),
                          begin + span.first * element_bytes);
    });
  }
  finish();
  return checksums;
}

}  // namespace ottava::checkpoint
