#include "parallel/checkpoint/layout.h"

#include <set>

#include "core/io/safetensors_folder.h"

namespace ottava::checkpoint {
namespace {

enum class Contents { weights, moments };

struct Stored {
  std::string name;
  DType dtype = DType::f32;
  std::optional<Moment> moment = {};
};

// What files of these contents have of a part.
std::vector<Stored> stored_of(Contents contents, const ParameterPart& part, UpdateRule rule,
                              const LayoutOptions& options) {
  if (contents == Contents::weights) return {{part.hf_name, options.weight}};
  std::vector<Stored> out;
  for (const MomentTraits& m : moments_of(rule))
    out.push_back({stored_name(part.hf_name, m), options.moments[m.moment], m.moment});
  return out;
}

// Divides the tensors into files in order, then makes headers and index, since file names contain the number
// of files.
void add_files(Layout& layout, std::span<const ParameterSpec> specs, Contents contents,
               const LayoutOptions& options) {
  const std::string_view stem = contents == Contents::weights ? "model" : "optimizer";
  std::vector<SafetensorsHeader> headers;
  auto first_file = static_cast<int>(layout.files.size());
  size_t first_tensor = layout.tensors.size();
  int64_t data_bytes = 0;
  for (size_t s = 0; s < specs.size(); ++s) {
    for (size_t p = 0; p < specs[s].parts.size(); ++p) {
      const ParameterPart& part = specs[s].parts[p];
      for (const Stored& stored : stored_of(contents, part, specs[s].rule, options)) {
        std::vector<int64_t> shape = {part.rows};
        if (!specs[s].is_vector) shape.push_back(specs[s].columns);
        SafetensorsEntry entry = make_safetensors_entry(stored.name, stored.dtype, shape, 0);
        if (headers.empty() || (data_bytes > 0 && data_bytes + entry.end > options.max_file_bytes)) {
          headers.push_back({.metadata = {{"format", "pt"}}});
          data_bytes = 0;
        }
        entry.begin += data_bytes;
        entry.end += data_bytes;
        data_bytes = headers.back().data_bytes = entry.end;
        headers.back().tensors.push_back(entry);
        layout.tensors.push_back({.entry = std::move(entry),
                                  .moment = stored.moment,
                                  .spec = static_cast<int>(s),
                                  .part = static_cast<int>(p),
                                  .file = first_file + static_cast<int>(headers.size()) - 1});
      }
    }
  }
  for (size_t i = 0; i < headers.size(); ++i) {
    std::string text = make_safetensors_header(headers[i]);
    int64_t bytes = std::ssize(text) + headers[i].data_bytes;
    layout.files.push_back(
        {safetensors_file_name(stem, static_cast<int>(i), static_cast<int>(headers.size())), std::move(text),
         bytes});
  }
  std::vector<std::pair<std::string, std::string>> tensor_files;
  int64_t total_bytes = 0;
  for (size_t t = first_tensor; t < layout.tensors.size(); ++t) {
    const StoredTensor& tensor = layout.tensors[t];
    tensor_files.emplace_back(tensor.entry.name, layout.files[tensor.file].name);
    total_bytes += tensor.entry.end - tensor.entry.begin;
  }
  layout.indexes.push_back({safetensors_index_name(stem), make_safetensors_index(tensor_files, total_bytes)});
}

}  // namespace

std::string stored_name(const std::string& hf_name, const MomentTraits& moment) {
  return fmt::format("{}.{}", hf_name, moment.name);
}

Layout plan_layout(std::span<const ParameterSpec> specs, const LayoutOptions& options) {
  std::set<std::string> names;
  for (const ParameterSpec& spec : specs) {
    for (const ParameterPart& part : spec.parts) {
      if (!names.insert(part.hf_name).second) {
        fail<ConfigError>("checkpoint", "two parameters are named '{}'", part.hf_name);
      }
    }
  }
  Layout layout;
  add_files(layout, specs, Contents::weights, options);
  if (options.with_optimizer) add_files(layout, specs, Contents::moments, options);
  return layout;
}

LayoutOptions layout_options_of(const TrainedParameters& parameters) {
  LayoutOptions options;
  options.with_optimizer = parameters.with_optimizer;
  for (size_t p = 0; p < parameters.shards.size(); ++p) {
    const HeldShard& shard = parameters.shards[p];
    options.weight = shard.weight.dtype;
    for (const MomentTraits& m : moments_of(parameters.specs[p].rule))
      options.moments[m.moment] = shard.moments[m.moment].dtype;
  }
  return options;
}

}  // namespace ottava::checkpoint
