#include "core/io/tensor_rectangle.h"

namespace ottava {

void read_rectangle(const SafetensorsFile& file, const SafetensorsEntry& entry, const TensorRectangle& r,
                    std::vector<char>& buffer,
                    const std::function<void(const ElementSpan&, const void*)>& take) {
  if (r.row_begin < 0 || r.row_end > entry.rows() || r.row_begin > r.row_end || r.column_begin < 0 ||
      r.column_end > entry.columns() || r.column_begin > r.column_end) {
    fail<FileError>(file.path(), "tensor '{}' is [{}, {}], rows {} to {} and columns {} to {} were asked for",
                    entry.name, entry.rows(), entry.columns(), r.row_begin, r.row_end, r.column_begin,
                    r.column_end);
  }
  if (r.numel() == 0) return;
  int64_t element_bytes = (entry.end - entry.begin) / entry.numel();
  buffer.resize(std::min(kTransferBytes, r.numel() * element_bytes));
  const int64_t tensor_begin = file.header().data_begin + entry.begin;
  for_each_span(entry.columns(), r, kTransferBytes / element_bytes, [&](const ElementSpan& span) {
    file.file().read_at(buffer.data(), span.count * element_bytes, tensor_begin + span.first * element_bytes);
    take(span, buffer.data());
  });
}

DType weight_dtype_of(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  if (!entry.dtype || !is_weight_dtype(*entry.dtype)) {
    fail<FileError>(file.path(), "tensor '{}' is stored as {}, expected F32, BF16 or F16", entry.name,
                    entry.type);
  }
  return *entry.dtype;
}

void read_rectangle(const SafetensorsFile& file, const SafetensorsEntry& entry,
                    const TensorRectangle& rectangle, FloatSpan to) {
  const DType stored_type = weight_dtype_of(file, entry);
  std::vector<char> buffer;
  auto* target = static_cast<char*>(to.data);
  size_t to_bytes = size_of(to.dtype);
  read_rectangle(file, entry, rectangle, buffer, [&](const ElementSpan& span, const void* stored) {
    cast_floats({stored_type, stored}, {to.dtype, target + span.local * to_bytes}, span.count);
  });
}

}  // namespace ottava
