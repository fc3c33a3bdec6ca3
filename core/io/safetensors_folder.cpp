#include "core/io/safetensors_folder.h"

#include <set>

#include "core/contains.h"
#include "core/io/folder.h"
#include "core/io/json.h"

namespace ottava {
namespace {

[[noreturn]] void fail_no_weights(const std::string& folder, std::string_view stem) {
  if (!is_folder(folder)) fail<FileError>("safetensors", "{} is not a folder", folder);
  bool pytorch =
      is_there(folder + "/pytorch_model.bin") || is_there(folder + "/pytorch_model.bin.index.json");
  fail<FileError>("safetensors", "{} has neither {} nor {}{}", folder, safetensors_index_name(stem),
                  safetensors_file_name(stem, 0, 1),
                  pytorch ? "; its PyTorch weights must be converted first (save_pretrained)" : "");
}

}  // namespace

std::string safetensors_file_name(std::string_view stem, int index, int count) {
  if (count == 1) return fmt::format("{}.safetensors", stem);
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, index + 1, count);
}

std::string safetensors_index_name(std::string_view stem) {
  return fmt::format("{}.safetensors.index.json", stem);
}

std::string make_safetensors_index(const std::vector<std::pair<std::string, std::string>>& tensor_files,
                                   int64_t total_bytes) {
  Json map(Json::Object{});
  for (const auto& [tensor, file] : tensor_files) map.set(tensor, file);
  Json root;
  root.set("metadata", Json().set("total_size", total_bytes)).set("weight_map", std::move(map));
  return root.dump(2) + "\n";
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view text, std::string_view where) {
  Json root = Json::parse(text, where);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] :
       root.at("weight_map", where).as_object(fmt::format("{}: weight_map", where))) {
    const std::string& name = file.as_string(fmt::format("{}: weight_map '{}'", where, tensor));
    if (name.empty() || name == "." || name == ".." || contains(name, '/') || contains(name, '\0')) {
      fail<FileError>(where, "weight_map '{}' names '{}', expected a file in the same folder", tensor, name);
    }
    files[tensor] = name;
  }
  return files;
}

SafetensorsFolder::SafetensorsFolder(const std::string& folder, std::string_view stem) : folder_(folder) {
  std::string index_path = folder + "/" + safetensors_index_name(stem),
              single = safetensors_file_name(stem, 0, 1);
  std::map<std::string, std::string> index;
  std::set<std::string> names;
  const bool has_index = is_there(index_path), has_single = is_there(folder + "/" + single);
  if (!has_index && !has_single) fail_no_weights(folder, stem);
  // Beside one file an index says nothing: save_pretrained() leaves it where it replaces several files by
  // one.
  if (has_single) {
    names = {single};
  } else {
    index = parse_safetensors_index(read_file(index_path), index_path);
    for (const auto& [tensor, file] : index) names.insert(file);
  }
  for (const std::string& name : names) {
    files_.push_back(std::make_unique<SafetensorsFile>(folder + "/" + name));
    for (const SafetensorsEntry& entry : files_.back()->header().tensors) {
      auto listed = index.find(entry.name);
      if (!index.empty() && (listed == index.end() || listed->second != name))
        continue;  // a leftover of another file
      tensors_[entry.name] = {files_.back().get(), &entry};
    }
  }
  for (const auto& [tensor, file] : index) {
    if (tensors_.count(tensor) == 0) {
      fail<FileError>(index_path, "tensor '{}' should be in {}, which does not have it", tensor, file);
    }
  }
}

SafetensorsFolder::Location SafetensorsFolder::find(const std::string& name) const {
  auto found = tensors_.find(name);
  return found == tensors_.end() ? Location{} : found->second;
}

}  // namespace ottava
