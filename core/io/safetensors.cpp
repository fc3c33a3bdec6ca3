#include "core/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "core/contains.h"
#include "core/io/json.h"
#include "core/io/lfs_pointer.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kAlignment = 64;

struct StoredType {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;
};
constexpr StoredType kTypes[] = {
    {"F32", 4, DType::f32},      {"BF16", 2, DType::bf16},    {"F16", 2, DType::f16},
    {"F8_E4M3", 1, DType::e4m3}, {"F8_E5M2", 1, DType::e5m2}, {"F8_E8M0", 1, DType::e8m0},
    {"U8", 1, DType::u8},        {"U16", 2, DType::u16},      {"I32", 4, DType::i32},
    {"U32", 4, DType::u32},      {"I64", 8, DType::i64},      {"F64", 8, DType::f64},
    {"BOOL", 1, std::nullopt},   {"I8", 1, std::nullopt},     {"I16", 2, std::nullopt},
    {"U64", 8, std::nullopt},    {"C64", 8, std::nullopt}};

int64_t as_size(const Json& value, std::string_view where, std::string_view what) {
  if (!value.is_integer() || value.as_integer(where) < 0) {
    fail<FileError>(where, "{} is {}, expected integers >= 0", what, value.dump().substr(0, 40));
  }
  return value.as_integer(where);
}

SafetensorsEntry parse_entry(const std::string& name, const Json& value, std::string_view where) {
  auto what = [&](std::string_view member) { return fmt::format("tensor '{}': {}", name, member); };
  if (!value.is_object() || !value.find("dtype") || !value.find("shape") || !value.find("data_offsets")) {
    fail<FileError>(where, "tensor '{}' is {}, expected an object with dtype, shape and data_offsets", name,
                    value.kind());
  }
  const Json &dtype = *value.find("dtype"), &shape = *value.find("shape"),
             &offsets = *value.find("data_offsets");
  const StoredType* type =
      dtype.is_string() ? find_by(kTypes, dtype.as_string(where), &StoredType::name) : nullptr;
  if (!type) fail<FileError>(where, "{} is {}, which is not a known type", what("dtype"), dtype.dump());
  if (!shape.is_array()) fail<FileError>(where, "{} is {}, expected an array", what("shape"), shape.kind());
  if (!offsets.is_array() || offsets.as_array(where).size() != 2) {
    fail<FileError>(where, "{} is {}, expected [begin, end]", what("data_offsets"),
                    offsets.dump().substr(0, 40));
  }
  SafetensorsEntry entry{.name = name, .type = type->name, .dtype = type->dtype};
  int64_t bytes = type->bytes;
  for (const Json& extent : shape.as_array(where)) {
    entry.shape.push_back(as_size(extent, where, what("shape")));
    if (__builtin_mul_overflow(bytes, entry.shape.back(), &bytes)) {
      fail<FileError>(where, "{} {} has more elements than 64 bits can count", what("shape"), shape.dump());
    }
  }
  entry.begin = as_size(offsets.as_array(where)[0], where, what("data_offsets"));
  entry.end = as_size(offsets.as_array(where)[1], where, what("data_offsets"));
  if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
    fail<FileError>(where, "{} {} do not hold {} bytes of {} {}", what("data_offsets"), offsets.dump(), bytes,
                    type->name, shape.dump());
  }
  return entry;
}

// Every byte of the data belongs to exactly one tensor.
void check_cover(std::vector<SafetensorsEntry>& tensors, int64_t data_bytes, std::string_view where) {
  std::ranges::sort(tensors, {}, [](const SafetensorsEntry& e) { return std::pair(e.begin, e.end); });
  int64_t end = 0;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.begin != end) {
      fail<FileError>(where, "tensor '{}' begins at byte {} of the data, expected {}: {}", entry.name,
                      entry.begin, end,
                      entry.begin < end ? "it overlaps the one before" : "there is a hole before it");
    }
    end = entry.end;
  }
  if (end != data_bytes) {
    fail<FileError>(where, "the tensors take {} bytes of data, the file has {}: {}", end, data_bytes,
                    end > data_bytes ? "it is truncated" : "something follows the last tensor");
  }
}

}  // namespace

int64_t SafetensorsEntry::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string SafetensorsEntry::place_of(int64_t index) const {
  return columns() == 1 ? fmt::format("[{}]", index)
                        : fmt::format("[{}, {}]", index / columns(), index % columns());
}

SafetensorsEntry make_safetensors_entry(std::string name, DType dtype, std::vector<int64_t> shape,
                                        int64_t begin) {
  const StoredType* type = find_by(kTypes, std::optional(dtype), &StoredType::dtype);
  if (!type) fail<ConfigError>("safetensors", "the format has no type for {}", name_of(dtype));
  SafetensorsEntry entry{
      .name = std::move(name), .type = type->name, .dtype = dtype, .shape = std::move(shape), .begin = begin};
  entry.end = begin + entry.numel() * type->bytes;
  return entry;
}

std::string make_safetensors_header(const SafetensorsHeader& header) {
  Json root(Json::Object{});
  if (!header.metadata.empty()) {
    Json metadata;
    for (const auto& [name, text] : header.metadata) metadata.set(name, text);
    root.set("__metadata__", std::move(metadata));
  }
  for (const SafetensorsEntry& entry : header.tensors) {
    root.set(entry.name, Json()
                             .set("dtype", std::string(entry.type))
                             .set("shape", Json::Array(entry.shape.begin(), entry.shape.end()))
                             .set("data_offsets", Json::Array{entry.begin, entry.end}));
  }
  std::string json = root.dump();
  json.append((kAlignment - (json.size() + 8) % kAlignment) % kAlignment, ' ');
  uint64_t length = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json;
}

int64_t parse_safetensors_length(std::string_view first_bytes, int64_t file_bytes, std::string_view where) {
  if (first_bytes.size() < 8 || file_bytes < 8) {
    fail<FileError>(where, "a safetensors file begins with 8 bytes of length, this one has {}",
                    counted(file_bytes, "byte"));
  }
  if (first_bytes.substr(0, 7) == "version") {
    fail<FileError>(where, "{}", kLfsPointer);
  }
  if (first_bytes.substr(0, 4) == std::string_view("PK\3\4", 4)) {
    fail<FileError>(where,
                    "this is a PyTorch (zip) file, expected safetensors: convert it with save_pretrained");
  }
  uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), 8);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    fail<FileError>(where, "the header claims {}, the format allows {}: not a safetensors file",
                    counted(length, "byte"), kMaxHeaderBytes);
  }
  if (static_cast<int64_t>(length) > file_bytes - 8) {
    fail<FileError>(where, "the header claims {}, the file has {} in all: it is truncated",
                    counted(length, "byte"), file_bytes);
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes,
                                           std::string_view where) {
  if (json.empty() || json[0] != '{')
    fail<FileError>(where, "the header does not begin with '{{': not a safetensors file");
  Json root = Json::parse(json, where);
  SafetensorsHeader header;
  header.data_begin = std::ssize(json) + 8;
  header.data_bytes = data_bytes;
  for (const auto& [name, value] : root.as_object(where)) {
    if (name != "__metadata__") {
      header.tensors.push_back(parse_entry(name, value, where));
      continue;
    }
    for (const auto& [key, text] : value.as_object(where)) {
      if (!text.is_string())
        fail<FileError>(where, "__metadata__ '{}' is {}, expected a string", key, text.kind());
      header.metadata.emplace_back(key, text.as_string(where));
    }
  }
  check_cover(header.tensors, data_bytes, where);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(File::open_for_reading(path)) {
  int64_t file_bytes = file_.size();
  std::string first(std::min<int64_t>(file_bytes, 8), '\0');
  file_.read_at(first.data(), first.size(), 0);
  int64_t length = parse_safetensors_length(first, file_bytes, path);
  std::string json(length, '\0');
  file_.read_at(json.data(), json.size(), 8);
  header_ = parse_safetensors_header(json, file_bytes - 8 - length, path);
  for (const SafetensorsEntry& entry : header_.tensors) by_name_[entry.name] = &entry;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

}  // namespace ottava
