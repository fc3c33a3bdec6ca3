#include "parallel/checkpoint/manifest.h"

#include <algorithm>

#include "core/contains.h"
#include "core/io/folder.h"
#include "core/io/json.h"
#include "core/text/counted.h"
#include "parallel/checkpoint/checksum.h"

namespace ottava::checkpoint {
namespace {

constexpr std::string_view kFormat = "ottava checkpoint";
constexpr std::string_view kSeal = "  \"xxh64\": \"", kEnd = "\"\n}\n";

Manifest::File parse_file(const Json& value, std::string_view where) {
  Manifest::File file;
  file.name = value.at("name", where).as_string(where);
  if (!is_file_name(file.name)) {
    fail<FileError>(where, "file name '{}' points outside the folder", file.name);
  }
  file.bytes = value.at("bytes", where).as_integer(where);
  if (const Json* header = value.find("header_bytes")) file.header_bytes = header->as_integer(where);
  if (file.bytes < 0 || file.header_bytes < 0 || file.header_bytes > file.bytes) {
    fail<FileError>(where, "{} cannot have {} bytes, {} of them header", file.name, file.bytes,
                    file.header_bytes);
  }
  file.checksum = from_hex(value.at("xxh64", where).as_string(where), where);
  return file;
}

Manifest::Tensor parse_tensor(const Json& value, std::string_view where) {
  Manifest::Tensor tensor;
  tensor.name = value.at("name", where).as_string(where);
  tensor.file = value.at("file", where).as_string(where);
  tensor.type = value.at("dtype", where).as_string(where);
  for (const Json& extent : value.at("shape", where).as_array(where))
    tensor.shape.push_back(extent.as_integer(where));
  tensor.checksum = from_hex(value.at("checksum", where).as_string(where), where);
  return tensor;
}

}  // namespace

bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && !contains(name, '/');
}

std::string to_text(const Manifest& manifest) {
  Json root;
  root.set("format", std::string(kFormat)).set("version", kFormatVersion);
  root.set("step", manifest.step).set("world_size", manifest.world_size).set("layout", manifest.layout);
  Json files(Json::Array{}), tensors(Json::Array{});
  for (const Manifest::File& file : manifest.files) {
    Json value;
    value.set("name", file.name).set("bytes", file.bytes);
    if (file.header_bytes > 0) value.set("header_bytes", file.header_bytes);
    files.push(std::move(value.set("xxh64", to_hex(file.checksum))));
  }
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    tensors.push(Json()
                     .set("name", tensor.name)
                     .set("file", tensor.file)
                     .set("dtype", tensor.type)
                     .set("shape", Json::Array(tensor.shape.begin(), tensor.shape.end()))
                     .set("checksum", to_hex(tensor.checksum)));
  }
  root.set("files", std::move(files)).set("tensors", std::move(tensors)).set("complete", true);
  std::string text = root.dump(2);
  text.replace(text.size() - 2, 2, ",\n");  // the closing "\n}" comes after the seal
  std::string seal = to_hex(text_checksum(text));
  return text + std::string(kSeal) + seal + std::string(kEnd);
}

Manifest parse_manifest(std::string_view text, std::string_view where) {
  size_t tail = kSeal.size() + 16 + kEnd.size();
  if (text.size() < tail || text.substr(text.size() - tail, kSeal.size()) != kSeal ||
      text.substr(text.size() - kEnd.size()) != kEnd) {
    fail<FileError>(where, "the manifest is incomplete: it does not end with its checksum");
  }
  uint64_t seal = from_hex(text.substr(text.size() - kEnd.size() - 16, 16), where);
  if (text_checksum(text.substr(0, text.size() - tail)) != seal) {
    fail<FileError>(where, "the manifest has changed since it was written: its checksum differs");
  }
  Json root = Json::parse(text, where);
  if (root.at("format", where).as_string(where) != kFormat) {
    fail<FileError>(where, "format is '{}', expected '{}'", root.at("format", where).as_string(where),
                    kFormat);
  }
  int64_t version = root.at("version", where).as_integer(where);
  if (version != kFormatVersion) {
    fail<ConfigError>(where,
                      "format version {} is unknown; this program reads version {}: use the one that saved "
                      "this checkpoint, or move the checkpoint away",
                      version, kFormatVersion);
  }
  Manifest manifest;
  manifest.step = root.at("step", where).as_integer(where);
  manifest.world_size = root.at("world_size", where).as_integer(where);
  manifest.layout = root.at("layout", where).as_string(where);
  for (const Json& file : root.at("files", where).as_array(where))
    manifest.files.push_back(parse_file(file, where));
  for (const Json& tensor : root.at("tensors", where).as_array(where)) {
    manifest.tensors.push_back(parse_tensor(tensor, where));
  }
  if (!root.at("complete", where).as_bool(where)) fail<FileError>(where, "the checkpoint is not complete");
  return manifest;
}

void check_file(const std::string& folder, const Manifest::File& expected, std::string_view advice) {
  std::string path = folder + "/" + expected.name;
  ottava::File file = ottava::File::open_for_reading(path);
  int64_t bytes = file.size();
  if (bytes != expected.bytes) {
    fail<FileError>("checkpoint", "{} has {}, the manifest says {}: it is {}{}", path, counted(bytes, "byte"),
                    expected.bytes, bytes < expected.bytes ? "truncated" : "too long", advice);
  }
  int64_t checked = expected.header_bytes > 0 ? expected.header_bytes : bytes;
  std::string text(checked, '\0');
  file.read_at(text.data(), text.size(), 0);
  if (text_checksum(text) != expected.checksum) {
    fail<FileError>("checkpoint", "{}: its {} has changed since it was saved (checksum {}, expected {}){}",
                    path, expected.header_bytes > 0 ? "header" : "content", to_hex(text_checksum(text)),
                    to_hex(expected.checksum), advice);
  }
}

void check_model_file(const std::string& folder, const Manifest::File& expected) {
  check_file(folder, expected,
             fmt::format("; if it was changed on purpose, remove {}", manifest_path(folder)));
}

void check_checksum(const std::string& folder, const Manifest::Tensor& expected, uint64_t checksum) {
  if (checksum == expected.checksum) return;
  fail<FileError>("checkpoint",
                  "{}/{}: tensor '{}' has changed since it was saved (checksum {}, expected {})", folder,
                  expected.file, expected.name, to_hex(checksum), to_hex(expected.checksum));
}

std::optional<Manifest> find_manifest(const std::string& folder) {
  const std::string path = manifest_path(folder);
  if (!is_there(path)) return std::nullopt;
  return parse_manifest(read_file(path), path);
}

bool Manifest::has_optimizer() const {
  return std::ranges::any_of(tensors, [](const Tensor& t) { return t.file.starts_with("optimizer"); });
}

void refuse_checkpoint_of_pytorch(const std::string& folder) {
  if (!is_there(folder + "/.metadata")) return;
  fail<FileError>(
      "checkpoint",
      "{} is a distributed checkpoint of PyTorch (it has .metadata): convert it to Hugging Face's "
      "format (TorchTitan's scripts/checkpoint_conversion/convert_to_hf.py), and begin with that "
      "model: checkpoint.initial_load_path",
      folder);
}

Manifest open_checkpoint(const std::string& folder) {
  std::optional<Manifest> manifest = find_manifest(folder);
  if (!manifest) {
    refuse_checkpoint_of_pytorch(folder);
    fail<FileError>("checkpoint", "{} has no {}: it was not saved completely", folder, kManifestName);
  }
  for (const Manifest::File& file : manifest->files) check_file(folder, file);
  return *std::move(manifest);
}

}  // namespace ottava::checkpoint
