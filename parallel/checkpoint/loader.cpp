#include "parallel/checkpoint/loader.h"

#include <map>
#include <memory>
#include <set>

#include "core/io/folder.h"
#include "core/io/safetensors_folder.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "core/text/split.h"
#include "parallel/checkpoint/attempts.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/differences.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/held_runs.h"
#include "parallel/checkpoint/shard_reader.h"

namespace ottava::checkpoint {
namespace {

using TensorsByName = std::map<std::string_view, const Manifest::Tensor*>;

// The rule that trained the weight with this HF name, if its moments are there and it is another than `now`.
// Where the rule was changed, moments begin at zero.
const UpdateRuleTraits* rule_before(const TensorsByName& saved, const std::string& hf_name, UpdateRule now) {
  for (const UpdateRuleTraits& r : kUpdateRules) {
    if (saved.contains(stored_name(hf_name, r.moments.front()))) return r.rule == now ? nullptr : &r;
  }
  return nullptr;
}

bool begins_anew(const TensorsByName& saved, std::span<const ParameterSpec> specs,
                 const StoredTensor& wanted) {
  const ParameterSpec& spec = specs[wanted.spec];
  return wanted.moment && rule_before(saved, spec.parts[wanted.part].hf_name, spec.rule) != nullptr;
}

TensorsByName check_model(const Manifest& manifest, const Layout& layout,
                          std::span<const ParameterSpec> specs, const std::string& folder) {
  TensorsByName saved;
  for (const Manifest::Tensor& tensor : manifest.tensors) saved[tensor.name] = &tensor;
  const bool has_optimizer = manifest.has_optimizer();
  Differences differences;
  std::set<std::string_view> wanted;
  for (const StoredTensor& tensor : layout.tensors) {
    wanted.insert(tensor.entry.name);
    if (tensor.moment && !has_optimizer) {
      fail<ConfigError>("checkpoint",
                        "{} has no optimizer state, so it can start a run (checkpoint.initial_load_path, "
                        "with another job.dump_folder) but not resume one; set "
                        "checkpoint.last_save_model_only: false for runs to be resumed after their last step",
                        folder);
    }
    auto found = saved.find(tensor.entry.name);
    if (found == saved.end() && begins_anew(saved, specs, tensor)) continue;
    if (found == saved.end()) {
      differences.add("it has no '{}'", tensor.entry.name);
    } else if (found->second->shape != tensor.entry.shape) {
      differences.add("'{}' is {}, expected {}", tensor.entry.name, shape_text(found->second->shape),
                      shape_text(tensor.entry.shape));
    }
  }
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    if (tensor.file.starts_with("model") && !wanted.contains(tensor.name))
      differences.add("its '{}' is not part of this model", tensor.name);
  }
  differences.refuse(folder);
  return saved;
}

void say_what_begins_anew(const std::string& folder, const TensorsByName& saved,
                          std::span<const ParameterSpec> specs) {
  std::map<std::pair<UpdateRule, UpdateRule>, int64_t> changed;  // from one rule to another
  for (const ParameterSpec& spec : specs) {
    for (const ParameterPart& part : spec.parts) {
      if (const UpdateRuleTraits* theirs = rule_before(saved, part.hf_name, spec.rule))
        ++changed[{theirs->rule, spec.rule}];
    }
  }
  for (const auto& [rules, count] : changed) {
    const UpdateRuleTraits &theirs = traits_of(rules.first), &ours = traits_of(rules.second);
    log::warning("{}: {} trained with {} there and with {} here begin with zero {}{}{}", folder,
                 theirs.is_for_matrices || ours.is_for_matrices ? counted(count, "matrix", "matrices")
                                                                : counted(count, "tensor"),
                 theirs.name, ours.name, ours.moments.size() == 1 ? ours.moments[0].name : "moments",
                 ours.caution.empty() ? "" : "; ", ours.caution);
  }
}

// Reads what this rank holds and returns the checksums of what it owns, one per tensor of the layout.
std::vector<uint64_t> read_shards(const std::string& folder, const TensorsByName& saved, const Layout& layout,
                                  const TrainedParameters& into) {
  std::vector<uint64_t> checksums(layout.tensors.size(), 0);
  std::unique_ptr<SafetensorsFile> file;
  ShardReader reader(into.copy);
  for (const HeldRun& run : held_runs(layout, into)) {
    const StoredTensor& tensor = layout.tensors[run.tensor];
    if (!saved.contains(tensor.entry.name)) continue;  // of another update rule
    std::string path = folder + "/" + saved.at(tensor.entry.name)->file;
    if (!file || file->path() != path) file = std::make_unique<SafetensorsFile>(path);
    const SafetensorsEntry* entry = file->find(tensor.entry.name);
    if (!entry || entry->shape != tensor.entry.shape) {
      fail<FileError>("checkpoint", "{} does not contain '{}', although the manifest lists it", path,
                      tensor.entry.name);
    }
    reader.on_non_finite = nullptr;
    if (!tensor.moment) {
      reader.on_non_finite = [&](int64_t index) {
        fail<FileError>("checkpoint", "{}: '{}' is not finite at {}, so these weights cannot be trained",
                        path, entry->name, entry->place_of(index));
      };
    }
    uint64_t sum = reader.read(*file, *entry, run.rectangle, run.memory);
    if (run.is_owner) checksums[run.tensor] += sum;
  }
  return checksums;
}

// A checkpoint without optimizer state: one that lost some is broken, not an export.
bool is_export(const std::string& path) {
  try {
    if (is_there(path + "/" + safetensors_index_name("optimizer"))) return false;
    return !open_checkpoint(path).has_optimizer();
  } catch (const Error&) {  // loading names it
    return false;
  }
}

constexpr char kPathEnd = '\0';  // no path has it, as it may have a newline

// Paths of checkpoints that may be loaded, oldest first, each with kPathEnd behind it. If an export (weights
// only) is newer, a run does not continue from an older one by itself: it would reach that step with other
// weights.
std::string candidates(const std::string& folder, bool with_optimizer, int64_t load_step,
                       int64_t first_step) {
  std::string all, complete, passed_over;
  int64_t full_step = 0;
  for (const SavedStep& saved : list_steps(folder)) {
    if (load_step >= 0 ? saved.step != load_step : saved.step < first_step) continue;
    all += saved.path + kPathEnd;
    if (with_optimizer && is_export(saved.path)) {
      passed_over = saved.path;
    } else {
      complete += saved.path + kPathEnd;
      passed_over.clear();
      full_step = saved.step;
    }
  }
  if (!with_optimizer || complete.empty()) return all;
  if (!passed_over.empty()) {
    fail<ConfigError>("checkpoint",
                      "{} has only weights: resuming from step {} would train its steps again and set it "
                      "aside. To do so, set checkpoint.load_step: {}; to train further from its weights, "
                      "start a run in another job.dump_folder with checkpoint.initial_load_path: {}",
                      passed_over, full_step, full_step, passed_over);
  }
  return complete;
}

// It may be whole: a run that went back behind it would train its steps again.
[[noreturn]] void refuse_to_pass_over(const std::string& path, const FileError& error) {
  fail<NoAccess>(
      "checkpoint",
      "{} may not be read, and going on from an earlier one would train its steps again and set it "
      "aside: permit this user to read it, or set checkpoint.load_step to the step to go back to: {}",
      path, error.what());
}

}  // namespace

Manifest load_checkpoint(const std::string& folder, const TrainedParameters& into, PatientRanks& group) {
  Manifest manifest;
  Layout layout;
  TensorsByName saved;
  uint64_t content = 0;
  group.together([&] {
    manifest = open_checkpoint(folder);
    content = text_checksum(to_text(manifest));
    layout = plan_layout(into.specs, layout_options_of(into));
    saved = check_model(manifest, layout, into.specs, folder);
  });
  // Sums do not cover what replicas read, and if machines have copies of their own, one may be another run's.
  group.require_equal(fmt::format("the manifest of {}", folder), content);
  if (group.rank() == 0 && into.with_optimizer) say_what_begins_anew(folder, saved, into.specs);
  std::vector<uint64_t> checksums;
  group.together([&] { checksums = read_shards(folder, saved, layout, into); });
  group.sum(checksums);
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    if (!saved.contains(layout.tensors[t].entry.name)) continue;
    check_checksum(folder, *saved.at(layout.tensors[t].entry.name), checksums[t]);
  }
  return manifest;
}

std::optional<LoadedCheckpoint> load_newest(const std::string& folder, const TrainedParameters& into,
                                            PatientRanks& group, int64_t load_step,
                                            const LoadOptions& options) {
  std::string listed;
  in_three_attempts(
      group, fmt::format("the list of checkpoints in {} could not be read", folder),
      [&] {
        group.on_rank_0(
            [&] { listed = candidates(folder, into.with_optimizer, load_step, options.first_step); });
      },
      options.retry_seconds);
  listed = group.of_rank_0(listed);
  if (listed.empty()) {
    if (load_step >= 0) refuse_missing_step(folder, load_step);
    return std::nullopt;
  }
  std::vector<std::string_view> paths = split_text(listed, kPathEnd);
  paths.pop_back();  // behind the last path's end
  std::ranges::reverse(paths);
  std::string reasons;
  bool some_are_away = false;
  for (std::string_view listed_path : paths) {
    const std::string path(listed_path);
    const auto load = [&] {
      if (options.before_each) group.together([&] { options.before_each(path); });
      return LoadedCheckpoint{path, load_checkpoint(path, into, group)};
    };
    const bool is_given_up = options.given_up != nullptr && options.given_up->contains(path);
    try {
      if (!group.of_rank_0(is_given_up ? "once" : "").empty()) return load();
      return in_three_attempts(group, fmt::format("checkpoint {} could not be read", path), load,
                               options.retry_seconds);
    } catch (const FileError& error) {
      if (load_step >= 0) throw;
      if (dynamic_cast<const NoAccess*>(&error) != nullptr) refuse_to_pass_over(path, error);
      const bool is_away = dynamic_cast<const IoError*>(&error) != nullptr;
      some_are_away = some_are_away || is_away;
      if (group.rank() == 0) {
        log::warning("checkpoint {} {}: {}", path,
                     is_away ? "could not be read and is skipped" : "is broken and skipped", error.what());
      }
      reasons += fmt::format("\n  {}: {}", path, error.what());
    }
  }
  fail<FileError>("checkpoint", "all checkpoints in {} are broken{}; move them away to start over:{}", folder,
                  some_are_away ? " or could not be read, which may pass" : "", reasons);
}

}  // namespace ottava::checkpoint
