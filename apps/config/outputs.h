#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "apps/config/config.h"

namespace ottava {

/// Adds a problem for every key that gives an output the name of another one in job.dump_folder: where the
/// run writes a file, nothing else can be, neither a file nor a folder. Folders may be shared.
/// Also for a path that only a shell would expand, and for an empty job.dump_folder.
void check_outputs(const Config& config, config::Problems& problems);

/// Whether what a run or a checkpoint keeps has this name in this folder: metrics.jsonl where metrics or the
/// lock of a run are, model.safetensors where it is, config.json beside that.
bool is_file_of_run(const std::filesystem::path& file);

/// Whether a path is that of a file or folder which this start or another of the run writes, its dump folder
/// excepted: so that it is no data where that folder is one of data, too.
std::function<bool(const std::filesystem::path& path)> own_outputs(const Config& config);

/// The folders in which the run's files are or will be, those of traced steps that are there among them.
std::vector<std::string> output_folders(const Config& config);

}  // namespace ottava
