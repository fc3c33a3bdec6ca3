#include "parallel/checkpoint/writer.h"

#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/io/float_cast.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/folder.h"

namespace ottava::checkpoint {
namespace {

// A weight that f16 cannot represent would be stored as infinity, and ruin every answer of the model.
void require_numbers(ConstFloatSpan from, const char* halves, const StoredTensor& tensor,
                     const ElementSpan& span) {
  const auto count = static_cast<size_t>(span.count);
  for (size_t i = 0; (i += find_non_finite({DType::f16, halves + 2 * i}, count - i)) < count; ++i) {
    float value = 0;
    cast_floats({from.dtype, static_cast<const char*>(from.data) + i * size_of(from.dtype)},
                {DType::f32, &value}, 1);
    if (!std::isfinite(value)) continue;  // the run's own
    fail<NumericsError>("checkpoint",
                        "element {} of {} is {}, but the largest float16 number is 65504: set export_dtype "
                        "to bfloat16 or float32",
                        span.first + static_cast<int64_t>(i), tensor.entry.name, value);
  }
}

// A step whose update breaks the weights is not known by its gradients. Earlier checkpoints must outlive it.
void require_finite(ConstFloatSpan piece, const StoredTensor& tensor, const ElementSpan& span,
                    const std::string& folder) {
  const auto count = static_cast<size_t>(span.count);
  const size_t bad = find_non_finite(piece, count);
  if (bad == count) return;
  fail<NumericsError>("checkpoint",
                      "{} is not saved, because '{}' is not finite at {}: lower optimizer.lr, or raise "
                      "lr_scheduler.warmup_steps; {}",
                      std::filesystem::path(folder).stem().string(), tensor.entry.name,
                      tensor.entry.place_of(span.first + static_cast<int64_t>(bad)),
                      newest_complete_text(std::filesystem::path(folder).parent_path().string()));
}

// Passes on the elements of a run piece by piece, in the stored type, through host memory if they are
// elsewhere.
class Pieces {
 public:
  Pieces(const HeldRun& run, const StoredTensor& tensor, const WriteShards& work)
      : run_(run), tensor_(tensor), stored_(*tensor.entry.dtype), work_(work) {}

  /// Largest piece: pieces that are written from where they are keep a fast device busy.
  int64_t bytes() const { return are_passing() ? kTransferBytes : 8 * kTransferBytes; }
  /// Whether a piece is there only until the next.
  bool are_passing() const { return work_.copy || run_.memory.dtype != stored_; }
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
    if (stored_ == DType::f16) require_numbers({run_.memory.dtype, piece}, cast_.data(), tensor_, span);
    return cast_.data();
  }

 private:
  const HeldRun& run_;
  const StoredTensor& tensor_;
  DType stored_;
  const WriteShards& work_;
  std::vector<char> host_, cast_;
};

// Writes pieces that follow one another in memory and in the file together, in whole blocks: written each by
// itself, a small model's tensors took 0.04 ms of a processor apiece.
class Stretch {
 public:
  explicit Stretch(File& file) : file_(file) {}
  void add(const void* piece, int64_t bytes, int64_t offset) {
    if (piece != begin_ + bytes_ || offset != offset_ + bytes_) {
      flush();
      begin_ = static_cast<const char*>(piece), offset_ = offset;
    }
    bytes_ += bytes;
    if (bytes_ >= 8 * kTransferBytes) write(bytes_ - (offset_ + bytes_) % File::kBlock);
  }
  void flush() { write(bytes_); }

 private:
  void write(int64_t bytes) {
    if (bytes > 0) file_.write_uncached(begin_, static_cast<size_t>(bytes), offset_);
    begin_ += bytes, offset_ += bytes, bytes_ -= bytes;
  }

  File& file_;
  const char* begin_ = nullptr;
  int64_t offset_ = 0, bytes_ = 0;
};

}  // namespace

void create_files(const Layout& layout, const std::string& folder) {
  for (const StoredFile& stored : layout.files) {
    File file = File::create(folder + "/" + stored.name);
    file.reserve(stored.bytes);
    file.write_at(stored.header.data(), stored.header.size(), 0);
    file.close();
  }
}

std::vector<uint64_t> write_shards(const WriteShards& work) {
  const Layout& layout = *work.layout;
  std::vector<uint64_t> checksums(layout.tensors.size(), 0);
  std::vector<bool> is_flushed(layout.files.size(), false);
  File file;
  Stretch stretch(file);
  int open_file = -1;
  const auto open = [&](int index) {
    file = File::open_for_writing(work.folder + "/" + layout.files[static_cast<size_t>(index)].name);
    open_file = index;
  };
  const auto finish = [&] {
    if (open_file < 0) return;
    stretch.flush();
    file.sync();
    file.close();
    is_flushed[static_cast<size_t>(open_file)] = true;
  };
  for (const HeldRun& run : work.runs) {
    if (!run.is_owner) continue;
    if (run.arrived) run.arrived->synchronize();
    const StoredTensor& tensor = layout.tensors[run.tensor];
    const StoredFile& stored = layout.files[static_cast<size_t>(tensor.file)];
    if (tensor.file != open_file) {
      finish();
      open(tensor.file);
    }
    DType dtype = *tensor.entry.dtype;
    auto element_bytes = static_cast<int64_t>(size_of(dtype));
    int64_t begin = stored.data_begin() + tensor.entry.begin;
    checksums[run.tensor] += run.checksum.value_or(0);
    Pieces pieces(run, tensor, work);
    for_each_span(tensor.entry.columns(), run.rectangle, pieces.bytes() / 4, [&](const ElementSpan& span) {
      if (work.cancel != nullptr && *work.cancel)
        fail<FileError>("checkpoint", "saving into {} was interrupted", work.folder);
      const void* piece = pieces.at(span);
      if (!tensor.moment && !run.is_finite) require_finite({dtype, piece}, tensor, span, work.folder);
      if (!run.checksum) checksums[run.tensor] += element_checksum(piece, range_of(dtype, span));
      stretch.add(piece, span.count * element_bytes, begin + span.first * element_bytes);
      if (pieces.are_passing()) stretch.flush();
    });
  }
  finish();
  for (size_t f = 0; work.flushes_all && f < layout.files.size(); ++f) {
    if (is_flushed[f]) continue;
    open(static_cast<int>(f));
    finish();
  }
  return checksums;
}

}  // namespace ottava::checkpoint
