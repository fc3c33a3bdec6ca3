#include "parallel/checkpoint/verify.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "core/io/tensor_rectangle.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/differences.h"
#include "parallel/checkpoint/manifest.h"

namespace ottava::checkpoint {
namespace {

uint64_t checksum_of(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  const DType type = weight_dtype_of(file, entry);
  uint64_t sum = 0;
  std::vector<char> buffer;
  TensorRectangle all{0, entry.rows(), 0, entry.columns()};
  read_rectangle(file, entry, all, buffer, [&](const ElementSpan& span, const void* stored) {
    sum += element_checksum(stored, range_of(type, span));
  });
  return sum;
}

void check_tensor(const SafetensorsFile& file, const Manifest::Tensor& tensor) {
  const SafetensorsEntry* entry = file.find(tensor.name);
  if (!entry) fail<FileError>(file.path(), "has no tensor '{}', which the manifest lists", tensor.name);
  if (entry->shape != tensor.shape || entry->type != tensor.type) {
    fail<FileError>(file.path(), "tensor '{}' is {} {}, the manifest says {} {}", tensor.name, entry->type,
                    shape_text(entry->shape), tensor.type, shape_text(tensor.shape));
  }
  uint64_t sum = checksum_of(file, *entry);
  if (sum != tensor.checksum) {
    fail<FileError>(file.path(), "tensor '{}' has changed since it was saved (checksum {}, expected {})",
                    tensor.name, to_hex(sum), to_hex(tensor.checksum));
  }
}

TensorDifference compare(const SafetensorsFolder::Location& a, const SafetensorsFolder::Location& b) {
  TensorDifference result{.name = a.entry->name, .elements = a.entry->numel()};
  double squares = 0, square_sum = 0;
  std::vector<float> x, y;
  int64_t columns = std::max<int64_t>(a.entry->columns(), 1);
  int64_t band_rows = std::max<int64_t>(1, kTransferBytes / 4 / columns);
  for (int64_t row = 0; row < a.entry->rows(); row += band_rows) {
    TensorRectangle band{row, std::min(row + band_rows, a.entry->rows()), 0, a.entry->columns()};
    x.resize(band.numel());
    y.resize(x.size());
    read_rectangle(*a.file, *a.entry, band, FloatSpan{DType::f32, x.data()});
    read_rectangle(*b.file, *b.entry, band, FloatSpan{DType::f32, y.data()});
    for (size_t i = 0; i < x.size(); ++i) {
      const bool same = x[i] == y[i];  // also infinities, whose difference is NaN
      const double difference = same ? 0 : static_cast<double>(x[i]) - y[i];
      result.different += !same;
      // A difference of NaN stays the largest, though comparisons with it are false.
      if (!std::isnan(result.max_abs) && !(std::abs(difference) <= result.max_abs))
        result.max_abs = std::abs(difference);
      squares += difference * difference;
      square_sum += static_cast<double>(x[i]) * x[i];
    }
  }
  result.relative = squares == 0 ? 0 : std::sqrt(squares / square_sum);
  return result;
}

}  // namespace

std::vector<std::string> verify_checkpoint(const std::string& folder,
                                           const std::function<void(const std::string&)>& progress) {
  std::vector<std::string> problems;
  auto attempt = [&](const std::function<void()>& work) {
    try {
      work();
      return true;
    } catch (const Error& error) {
      problems.push_back(error.what());
      return false;
    }
  };
  Manifest manifest;
  std::string path = manifest_path(folder);
  if (!attempt([&] { manifest = parse_manifest(read_file(path), path); })) return problems;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files;
  for (const Manifest::File& file : manifest.files) {
    // Tensors of a file that is not what the manifest says cannot be judged one by one.
    bool is_whole = attempt([&] { check_file(folder, file); });
    if (is_whole && file.header_bytes > 0) {
      attempt([&] { files[file.name] = std::make_unique<SafetensorsFile>(folder + "/" + file.name); });
    }
  }
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    if (progress) progress(tensor.name);
    auto file = files.find(tensor.file);
    if (file != files.end()) attempt([&] { check_tensor(*file->second, tensor); });
  }
  return problems;
}

bool FolderDifference::same() const {
  return only_in_a.empty() && only_in_b.empty() && other_shape.empty() &&
         std::ranges::all_of(tensors, [](const TensorDifference& t) { return t.different == 0; });
}

FolderDifference compare_folders(const SafetensorsFolder& a, const SafetensorsFolder& b) {
  FolderDifference result;
  for (const auto& [name, in_a] : a.tensors()) {
    SafetensorsFolder::Location in_b = b.find(name);
    if (!in_b.entry) {
      result.only_in_a.push_back(name);
    } else if (in_a.entry->shape != in_b.entry->shape) {
      result.other_shape.push_back(
          fmt::format("{}: {} and {}", name, shape_text(in_a.entry->shape), shape_text(in_b.entry->shape)));
    } else {
      result.tensors.push_back(compare(in_a, in_b));
    }
  }
  for (const auto& [name, in_b] : b.tensors()) {
    if (a.find(name).entry == nullptr) result.only_in_b.push_back(name);
  }
  return result;
}

}  // namespace ottava::checkpoint
