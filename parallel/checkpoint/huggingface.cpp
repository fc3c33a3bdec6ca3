#include "parallel/checkpoint/huggingface.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "core/io/safetensors_folder.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/differences.h"
#include "parallel/checkpoint/held_runs.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/shard_reader.h"

namespace ottava::checkpoint {
namespace {

constexpr std::string_view kHead = "lm_head.weight", kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kRotary = "rotary_emb.inv_freq";

// True when the folder's output layer and embedding are the same numbers.
bool is_tied(const SafetensorsFolder& folder) {
  auto head = folder.find(std::string(kHead)), embedding = folder.find(std::string(kEmbedding));
  if (!embedding.entry || head.entry->shape != embedding.entry->shape ||
      head.entry->type != embedding.entry->type || !head.entry->dtype ||
      !is_weight_dtype(*head.entry->dtype)) {
    return false;
  }
  const SafetensorsEntry& e = *head.entry;
  bool same = true;
  constexpr int64_t kBandRows = 64;
  for (int64_t row = 0; row < e.rows() && same; row += kBandRows) {
    TensorRectangle band{row, std::min(row + kBandRows, e.rows()), 0, e.columns()};
    auto bytes = band.numel() * size_of(*e.dtype);
    std::vector<char> a(bytes), b(bytes);
    read_rectangle(*head.file, e, band, FloatSpan{*e.dtype, a.data()});
    read_rectangle(*embedding.file, *embedding.entry, band, FloatSpan{*e.dtype, b.data()});
    same = a == b;
  }
  return same;
}

// Of every tensor, what the header says and a few bytes from its middle: different weights of the same shapes
// differ there too, and no rank reads them all.
uint64_t fingerprint(const SafetensorsFolder& folder) {
  constexpr int64_t kSampleBytes = 4096;
  std::string all;
  for (const auto& [name, location] : folder.tensors()) {
    const SafetensorsEntry& e = *location.entry;
    std::string sample(std::min(kSampleBytes, e.end - e.begin), '\0');
    const int64_t first = e.begin + (e.end - e.begin - std::ssize(sample)) / 2;
    location.file->file().read_at(sample.data(), sample.size(), location.file->header().data_begin + first);
    all += fmt::format("{} {} {} {:x}\n", name, e.type, shape_text(e.shape), text_checksum(sample));
  }
  return text_checksum(all);
}

// Lists what does not fit; returns what is not needed.
std::vector<std::string> check_model(const SafetensorsFolder& folder, const Layout& layout) {
  Differences differences;
  std::set<std::string_view> wanted;
  for (const StoredTensor& tensor : layout.tensors) {
    wanted.insert(tensor.entry.name);
    const SafetensorsEntry* found = folder.find(tensor.entry.name).entry;
    if (!found) {
      bool head = tensor.entry.name == kHead;
      differences.add("it has no '{}'{}", tensor.entry.name, head ? " (tied embeddings?)" : "");
    } else if (found->shape != tensor.entry.shape) {
      differences.add("'{}' is {}, expected {}", tensor.entry.name, shape_text(found->shape),
                      shape_text(tensor.entry.shape));
    } else if (!found->dtype || !is_weight_dtype(*found->dtype)) {
      differences.add("'{}' is stored as {}, expected F32, BF16 or F16", tensor.entry.name, found->type);
    }
  }
  std::vector<std::string> ignored;
  for (const auto& [name, location] : folder.tensors()) {
    if (wanted.count(name) != 0) continue;
    if (name.ends_with(kRotary) || (name == kHead && is_tied(folder))) {
      ignored.push_back(name);
    } else {
      std::string why = name == kHead ? " and differs from the embedding, to which this model ties it" : "";
      differences.add("its '{}' is not part of this model{}", name, why);
    }
  }
  differences.refuse(folder.path());
  return ignored;
}

// Checks sizes, headers and texts of the files that are loaded. Others may have been edited, or removed like
// the optimizer's.
void check_files(const Manifest& manifest, const std::string& folder) {
  for (const Manifest::File& file : manifest.files) {
    if (file.name == "config.json" || file.name.starts_with("model")) check_model_file(folder, file);
  }
}

// Reads what this rank holds and returns the checksums of what it owns, one per tensor of the layout.
std::vector<uint64_t> read_weights(const SafetensorsFolder& folder, const Layout& layout,
                                   const TrainedParameters& into) {
  std::vector<uint64_t> checksums(layout.tensors.size(), 0);
  ShardReader reader(into.copy);
  for (const HeldRun& run : held_runs(layout, into)) {
    const std::string& name = layout.tensors[run.tensor].entry.name;
    auto [file, entry] = folder.find(name);
    reader.on_non_finite = [&, path = file->path(), entry = entry](int64_t index) {
      fail<FileError>("checkpoint", "{}: '{}' is not finite at {}, so these weights cannot be trained", path,
                      name, entry->place_of(index));
    };
    const uint64_t sum = reader.read(*file, *entry, run.rectangle, run.memory);
    if (run.is_owner) checksums[run.tensor] += sum;
  }
  return checksums;
}

void check_checksums(const Manifest& manifest, const std::string& folder, const Layout& layout,
                     const std::vector<uint64_t>& checksums) {
  std::map<std::string_view, uint64_t> read;
  for (size_t t = 0; t < checksums.size(); ++t) read[layout.tensors[t].entry.name] = checksums[t];
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    if (auto found = read.find(tensor.name); found != read.end())
      check_checksum(folder, tensor, found->second);
  }
}

}  // namespace

HuggingFaceLoad load_huggingface(const std::string& path, const TrainedParameters& into,
                                 PatientRanks& group) {
  HuggingFaceLoad result;
  std::unique_ptr<SafetensorsFolder> folder;
  std::optional<Manifest> manifest;
  Layout layout;
  uint64_t content = 0;
  group.together([&] {
    manifest = find_manifest(path);
    if (manifest) check_files(*manifest, path);
    folder = std::make_unique<SafetensorsFolder>(path);
    LayoutOptions options = layout_options_of(into);
    options.with_optimizer = false;
    layout = plan_layout(into.specs, options);
    result.ignored = check_model(*folder, layout);
    content = fingerprint(*folder) + (manifest ? text_checksum(to_text(*manifest)) : 0);
  });
  group.require_equal(fmt::format("what {} holds", path), content);
  std::vector<uint64_t> checksums;
  group.together([&] { checksums = read_weights(*folder, layout, into); });
  if (manifest) {
    group.sum(checksums);
    check_checksums(*manifest, path, layout, checksums);
  }
  std::set<std::string_view> types;
  for (const StoredTensor& tensor : layout.tensors) types.insert(folder->find(tensor.entry.name).entry->type);
  result.stored_types.assign(types.begin(), types.end());
  return result;
}

}  // namespace ottava::checkpoint
