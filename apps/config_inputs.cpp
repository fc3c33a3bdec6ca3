#include <fmt/core.h>

#include "apps/config.h"
#include "core/error.h"

namespace ottava {
namespace fs = std::filesystem;

namespace {

bool is_glob(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

void require_data(const Config& config, std::string_view section, const std::string& dataset,
                  const std::vector<std::string>& paths, config::Problems& problems) {
  std::string key = fmt::format("{}.dataset_path", section);
  if (paths.empty()) {
    problems.add(key, fmt::format("no text is given; {}.dataset '{}' is only a name and nothing is downloaded: set --{} to a file, "
                                  "folder or glob", section, dataset, key));
  }
  for (const std::string& path : paths) {
    try {
      find_input(config, key, path);
    } catch (const FileError& e) {
      problems.add(key, e.what());
    }
  }
}

}  // namespace

fs::path find_input(const Config& config, std::string_view key, const std::string& path) {
  std::error_code error;
  if (path.empty()) fail<FileError>(key, "the path is empty");
  fs::path here(path), beside = config.provenance.file.parent_path() / path;
  if (is_glob(path) || fs::exists(here, error)) return here;
  bool has_other_place = here.is_relative() && !config.provenance.file.empty();
  if (has_other_place && fs::exists(beside, error)) return beside;
  fail<FileError>(key, "{} does not exist: tried {}{}", path, fs::absolute(here, error).lexically_normal().string(),
                  has_other_place ? " and " + fs::absolute(beside, error).lexically_normal().string() : "");
}

void require_inputs(const Config& config) {
  config::Problems problems;
  problems.origins = config.provenance.origins;
  require_data(config, "training", config.training.dataset, config.training.dataset_path, problems);
  if (config.validation.enable) {
    require_data(config, "validation", config.validation.dataset, config.validation.dataset_path, problems);
  }
  auto require_path = [&](std::string_view key, const std::string& path) {
    try {
      find_input(config, key, path);
    } catch (const FileError& e) {
      problems.add(key, e.what());
    }
  };
  require_path("model.hf_assets_path", config.model.hf_assets_path);
  if (config.checkpoint.initial_load_path) require_path("checkpoint.initial_load_path", *config.checkpoint.initial_load_path);
  problems.throw_if_any(config.provenance.file.empty() ? "the command line" : config.provenance.file.string());
}

}  // namespace ottava
