#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/config.h"
#include "apps/config/installed.h"
#include "core/config/print.h"
#include "core/error.h"
#include "core/io/attempts.h"
#include "core/io/folder.h"
#include "core/io/system_failure.h"
#include "core/text/listed.h"
#include "core/text/shell_word.h"
#include "parallel/checkpoint/folder.h"

namespace ottava {
namespace fs = std::filesystem;

namespace {

bool is_glob(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

/// Asks of a path what the system may not be able to tell for a moment: in three attempts, until one was
/// asked in vain, so that a start waits only once for a file server that stays away. Throws FileError if the
/// system cannot tell, as ottava::is_there() does.
template <class Question>
auto ask(GivenUp& away, const fs::path& path, const Question& question) {
  return away.attempt("inputs", {.complaint = fmt::format("'{}' could not be looked at", path.string())},
                      [&] { return question(path.string()); });
}

bool is_found(const std::string& path) {
  return is_there(path) || (is_glob(path) && !paths_matching("file", path).empty());
}

/// What a path leads to, or why it leads nowhere.
struct Found {
  fs::path path;
  std::string missing;
  bool is_unknown = false;  ///< whether it leads anywhere
};

Found look_for(const Config& config, GivenUp& away, const std::string& path) {
  if (path.starts_with('@')) {  // a file that lists sources
    Found list = look_for(config, away, path.substr(1));
    if (list.missing.empty()) list.path = "@" + list.path.string();
    return list;
  }
  if (path.empty()) return {{}, "the path is empty"};
  const fs::path& file = config.provenance.file;
  std::vector<fs::path> folders = {""};
  if (fs::path(path).is_relative()) {
    if (!file.empty()) folders.push_back(file.parent_path());
    if (const fs::path installed = installed_folder(); !installed.empty()) folders.push_back(installed);
  }
  std::set<std::string> seen;
  std::string tried, unknown;
  for (const fs::path& folder : folders) {
    const fs::path place = folder / path;
    try {
      if (ask(away, place, is_found)) return {place, ""};
    } catch (const IoError& error) {  // it may be there, and another of its name elsewhere
      return {{}, fmt::format("'{}' cannot be used: {}", path, error.what()), true};
    } catch (const FileError& error) {
      unknown = fmt::format(" ({})", error.what());
    }
    const std::string full = fs::absolute(place).lexically_normal().string();
    if (seen.insert(full).second) add_item(tried, full, " and ");
  }
  const std::string_view why = !is_glob(path)    ? "does not exist"
                               : unknown.empty() ? "matches no file"
                                                 : "cannot be listed";
  return {{}, fmt::format("'{}' {}; looked at {}{}", path, why, tried, unknown)};
}

/// Of data. Commas separate paths only on the command line; here a path may contain them.
Found look_for_data(const Config& config, GivenUp& away, const std::string& path) {
  Found found = look_for(config, away, path);
  const std::vector<std::string> parts = config::parts_between_commas(path);
  const auto is_found = [&](const std::string& part) { return look_for(config, away, part).missing.empty(); };
  if (!found.missing.empty() && parts.size() > 1 && std::ranges::all_of(parts, is_found))
    found.missing = fmt::format("'{}' is one path, which does not exist; write a list: {}", path,
                                config::to_quoted_list(parts));
  return found;
}

/// The folder of model.hf_assets_path.
Found look_for_assets(const Config& config, GivenUp& away) {
  const std::string& path = config.model.hf_assets_path;
  Found found = look_for(config, away, path);
  if (!found.missing.empty()) return found;
  try {
    if (ask(away, found.path, is_folder)) return found;
  } catch (const FileError& error) {
    return {{}, fmt::format("'{}' cannot be used: {}", path, error.what()), true};
  }
  const fs::path folder = fs::absolute(found.path).parent_path().lexically_normal();
  std::error_code error;
  const bool is_beside = fs::exists(folder / "tokenizer.json", error);
  return {{},
          fmt::format("'{}' is a file, expected the folder that holds tokenizer.json (for model.flavor hf "
                      "also config.json): set it to that folder{}",
                      path, is_beside ? fmt::format(", '{}'", folder.string()) : "")};
}

/// Collects what is absent instead of stopping at the first.
class Inputs {
 public:
  explicit Inputs(const Config& config) : config_(config) { problems_.origins = config.provenance.origins; }

  void need(const std::string& key, const Found& found) {
    lacks_more_ |= !found.missing.empty();
    add(key, found);
  }
  void need_checkpoint(const std::string& key, const std::string& path) {
    const Found found = look_for(config_, away_, path);
    if (!found.missing.empty()) return need(key, found);
    try {
      ask(away_, found.path, checkpoint::newest_step_or_itself);
    } catch (const FileError& error) {  // a file, or a folder in which several are meant
      lacks_more_ = true;
      problems_.add(key, error);
    }
  }
  /// Every path of every set.
  void need_each(const std::string& key, const auto& sets) {
    for (const auto& set : sets)
      for (const std::string& path : set.path) need(key, look_for_data(config_, away_, path));
  }
  void need_assets() {
    const Found assets = look_for_assets(config_, away_);
    if (!assets.missing.empty()) wanted_ += " --model.hf_assets_path FOLDER_WITH_TOKENIZER";
    add("model.hf_assets_path", assets);
  }

  void need_text(const std::string& section, const std::string& dataset,
                 const std::vector<std::string>& paths) {
    std::string key = section + ".dataset_path";
    const auto is_missing = [&](const std::string& path) {
      return !look_for(config_, away_, path).missing.empty();
    };
    const bool lacks_some = std::ranges::any_of(paths, is_missing);
    if (paths.empty() || lacks_some) wanted_ += fmt::format(" --{} TEXT", key);
    if (paths.empty()) {
      problems_.add(key,
                    "no data is given; {}.dataset '{}' is only a name, and nothing is downloaded: set --{} "
                    "to a file, folder or glob",
                    section, dataset, key);
    }
    const std::string whole = fmt::format("{}", fmt::join(paths, ","));
    if (lacks_some && paths.size() > 1 && !is_missing(whole)) {
      const std::string list = config::to_inline_yaml(config::Value::list_of({whole}));
      return problems_.add(
          key, fmt::format("'{}' exists, but commas separate paths on the command line: write --{} {}", whole,
                           key, shell_word(list)));
    }
    for (const std::string& path : paths) add(key, look_for_data(config_, away_, path));
  }

  void finish() const {
    const fs::path& file = config_.provenance.file;
    std::string what = file.empty() ? "the command line" : file.string();
    if (!wanted_.empty() && !lacks_more_) what += ", which can be trained after adding" + wanted_;
    problems_.throw_if_any(what);
  }

 private:
  void add(const std::string& key, const Found& found) {
    if (!found.missing.empty()) problems_.add(key, found.missing);
  }

  const Config& config_;
  GivenUp away_;
  config::Problems problems_;
  std::string wanted_;       ///< options that no file can bring along
  bool lacks_more_ = false;  ///< than these options give
};

}  // namespace

fs::path find_input(const Config& config, std::string_view key, const std::string& path) {
  GivenUp away;
  const Found found = look_for(config, away, path);
  if (!found.missing.empty()) fail<FileError>(key, "{}", found.missing);
  return found.path;
}

bool has_assets(const Config& config) {
  GivenUp away;
  const Found found = look_for(config, away, config.model.hf_assets_path);
  if (found.is_unknown) fail<FileError>("model.hf_assets_path", "{}", found.missing);
  return found.missing.empty();
}

fs::path find_assets(const Config& config) {
  GivenUp away;
  const Found found = look_for_assets(config, away);
  if (!found.missing.empty()) fail<FileError>("model.hf_assets_path", "{}", found.missing);
  return found.path;
}

void require_inputs(const Config& config) {
  Inputs inputs(config);
  inputs.need_assets();
  const TrainingConfig& t = config.training;
  inputs.need_each("training.mixture", t.mixture);
  if (t.mixture.empty()) inputs.need_text("training", t.dataset, t.dataset_path);
  if (config.validation.enable) {
    const ValidationConfig& v = config.validation;
    inputs.need_each("validation.datasets", v.datasets);
    if (v.datasets.empty()) inputs.need_text("validation", v.dataset, v.dataset_path);
  }
  if (config.evaluation.enable) inputs.need_each("evaluation.tasks", config.evaluation.tasks);
  if (config.checkpoint.initial_load_path) {
    inputs.need_checkpoint("checkpoint.initial_load_path", *config.checkpoint.initial_load_path);
  }
  inputs.finish();
}

}  // namespace ottava
