#include "apps/commands/checkpoint_command.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>

#include "apps/commands/command_line.h"
#include "core/error.h"
#include "core/io/folder.h"
#include "core/io/json.h"
#include "core/metrics/step_line.h"
#include "core/text/counted.h"
#include "core/text/listed.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/differences.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/verify.h"

namespace ottava {
namespace {

using fmt::print;

namespace fs = std::filesystem;
using checkpoint::compare_folders;
using checkpoint::FolderDifference;
using checkpoint::Manifest;
using checkpoint::newest_step_or_itself;
using checkpoint::open_checkpoint;
using checkpoint::shape_text;
using checkpoint::TensorDifference;
using checkpoint::to_hex;
using checkpoint::verify_checkpoint;

/// The checkpoint that `path` names. A model from elsewhere lacks what is needed here, but nothing is wrong
/// with it.
std::string checkpoint_at(const std::string& path) {
  const std::string folder = newest_step_or_itself(path);
  const fs::path at = fs::path(folder) / "";
  const bool is_step = at.parent_path().filename().string().starts_with("step-");
  if (!is_step && is_there((at / "config.json").string()) &&
      !is_there((at / checkpoint::kManifestName).string())) {
    fail<FileError>("checkpoint",
                    "{} is a Hugging Face model without the {} that checkpoints of runs have: give a step-N "
                    "folder or a run's folder (only diff accepts models)",
                    folder, checkpoint::kManifestName);
  }
  return folder;
}

std::string bytes_text(int64_t bytes) {
  if (bytes < 10'000) return counted(bytes, "byte");
  if (bytes < 10'000'000) return fmt::format("{:.1f} KB", bytes / 1e3);
  if (bytes < 10'000'000'000) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.1f} GB", bytes / 1e9);
}

int64_t numel_of(const Manifest::Tensor& tensor) {
  int64_t numel = 1;
  for (int64_t extent : tensor.shape) numel *= extent;
  return numel;
}

bool is_weight(const Manifest::Tensor& tensor) { return tensor.file.starts_with("model"); }

void print_training_state(const std::string& folder, std::ostream& out) {
  std::string path = folder + "/training_state.json";
  if (!is_there(path)) return;
  Json state = Json::parse(read_file(path), path);
  out << "state:\n";
  for (const auto& [name, value] : state.as_object(path))
    print(out, "  {:<40} {}\n", name, value.is_string() ? value.as_string(path) : value.dump());
}

bool has_optimizer(const std::string& folder) {
  return is_there(folder + "/" + safetensors_index_name("optimizer"));
}

bool print_differences(const FolderDifference& d, const CheckpointDiffOptions& options, std::string_view what,
                       std::ostream& out) {
  for (const std::string& name : d.only_in_a) print(out, "only in {}: {}\n", options.a, name);
  for (const std::string& name : d.only_in_b) print(out, "only in {}: {}\n", options.b, name);
  for (const std::string& text : d.other_shape) print(out, "shapes differ: {}\n", text);
  std::vector<TensorDifference> different;
  std::ranges::copy_if(d.tensors, std::back_inserter(different),
                       [](const TensorDifference& t) { return t.different > 0; });
  // NaN first: it is the largest difference there is.
  auto size = [](const TensorDifference& t) { return std::isnan(t.relative) ? HUGE_VAL : t.relative; };
  std::ranges::stable_sort(different, std::greater(), size);
  print(out, "{}: {} of {} in both {}\n", what, different.size(), counted(d.tensors.size(), "tensor"),
        different.size() == 1 ? "differs" : "differ");
  size_t shown = options.largest == 0 ? different.size() : static_cast<size_t>(options.largest);
  for (size_t i = 0; i < std::min(shown, different.size()); ++i) {
    const TensorDifference& t = different[i];
    print(out, "  {:<60} relative {:.3e}  largest {:.3e}  {} of {} elements\n", t.name, t.relative, t.max_abs,
          t.different, t.elements);
  }
  if (shown < different.size()) print(out, "  and {} more\n", different.size() - shown);
  return d.same();
}

}  // namespace

void inspect_checkpoint(const CheckpointInspectOptions& options, std::ostream& out) {
  std::string folder = checkpoint_at(options.path);
  Manifest manifest = open_checkpoint(folder);
  int64_t total = 0, parameters = 0, weights = 0;
  for (const Manifest::File& file : manifest.files) total += file.bytes;
  std::map<std::string, int64_t> types;
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    if (!is_weight(tensor)) continue;
    ++weights;
    ++types[tensor.type];
    parameters += numel_of(tensor);
  }
  const std::string stored =
      listed(types, [](const auto& type) { return fmt::format("{} {}", type.second, type.first); });
  print(out, "{}\n", folder);
  print(out, "step:     {}, saved by {}{}\n", manifest.step, counted(manifest.world_size, "rank"),
        manifest.layout.empty() ? "" : fmt::format(" ({})", manifest.layout));
  print(out, "model:    {} parameters in {} ({})\n", with_commas(parameters), counted(weights, "tensor"),
        stored);
  int64_t moments = std::ssize(manifest.tensors) - weights;
  fmt::print(
      out, "optimizer: {}\n",
      moments == 0 ? "none: this checkpoint can start a run but not resume one" : counted(moments, "tensor"));
  print_training_state(folder, out);
  print(out, "files:    {} with {}; sizes, headers and small files are as they were saved\n",
        manifest.files.size(), bytes_text(total));
  for (const Manifest::File& file : manifest.files)
    print(out, "  {:<40} {}\n", file.name, bytes_text(file.bytes));
  if (options.tensors == CheckpointInspectOptions::Tensors::summary) return;
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    print(out, "  {:<60} {:<5} {:<16} {}\n", tensor.name, tensor.type, shape_text(tensor.shape),
          to_hex(tensor.checksum));
  }
}

bool verify_checkpoint(const CheckpointVerifyOptions& options, std::ostream& out) {
  std::string folder = checkpoint_at(options.path);
  int64_t tensors = 0;
  std::vector<std::string> problems =
      checkpoint::verify_checkpoint(folder, [&](const std::string&) { ++tensors; });
  for (const std::string& problem : problems) print(out, "{}\n", problem);
  if (problems.empty()) {
    print(out, "{}: all {} tensors and all files are as they were saved\n", folder, tensors);
  } else {
    print(out, "{}: {}\n", folder, counted(problems.size(), "problem"));
  }
  return problems.empty();
}

bool diff_checkpoints(const CheckpointDiffOptions& options, std::ostream& out) {
  std::string a = newest_step_or_itself(options.a), b = newest_step_or_itself(options.b);
  bool same =
      print_differences(compare_folders(SafetensorsFolder(a), SafetensorsFolder(b)), options, "weights", out);
  if (options.what == CheckpointDiffOptions::What::weights) return same;
  if (has_optimizer(a) && has_optimizer(b)) {
    SafetensorsFolder moments_a(a, "optimizer"), moments_b(b, "optimizer");
    same &= print_differences(compare_folders(moments_a, moments_b), options, "optimizer", out);
  } else if (has_optimizer(a) != has_optimizer(b)) {
    print(out, "optimizer: only {} has any\n", has_optimizer(a) ? a : b);
    same = false;
  }
  return same;
}

namespace {

void add_inspect_checkpoint(Command& checkpoint) {
  auto o = std::make_shared<CheckpointInspectOptions>();
  checkpoint.subcommand("inspect", "show what a checkpoint contains")
      .required("path", o->path, "a step-N folder, or a run's folder of them")
      .flag("--tensors", o->tensors, CheckpointInspectOptions::Tensors::list, "also list every tensor")
      .run(o, inspect_checkpoint);
}

void add_verify(Command& checkpoint) {
  auto o = std::make_shared<CheckpointVerifyOptions>();
  checkpoint.subcommand("verify", "read every byte and compare checksums; exit code 1 if anything differs")
      .required("path", o->path, "a step-N folder, or a run's folder of them")
      .run([o] { return verify_checkpoint(*o, std::cout) ? 0 : 1; });
}

void add_diff(Command& checkpoint) {
  auto o = std::make_shared<CheckpointDiffOptions>();
  checkpoint.subcommand("diff", "show which tensors differ and by how much; exit code 1 if any differs")
      .required("a", o->a, "first checkpoint: a step-N folder, or a run's folder of them")
      .required("b", o->b, "second checkpoint")
      .option("--largest", o->largest, "number of tensors to list; 0: all")
      .within(0)
      .flag("--model-only", o->what, CheckpointDiffOptions::What::weights,
            "compare only the weights, not the optimizer state")
      .run([o] { return diff_checkpoints(*o, std::cout) ? 0 : 1; });
}

}  // namespace

void add_checkpoint_commands(Command& commands) {
  Command checkpoint = commands.subcommand(
      "checkpoint",
      "inspect, verify and compare checkpoints; PATH is a step-N folder or a run's folder of them");
  add_inspect_checkpoint(checkpoint);
  add_verify(checkpoint);
  add_diff(checkpoint);
}

}  // namespace ottava
