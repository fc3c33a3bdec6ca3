#include "parallel/checkpoint/folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "core/contains.h"
#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/system_failure.h"
#include "core/log.h"
#include "core/text/listed.h"
#include "core/text/number.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/manifest.h"

namespace ottava::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kReplaced = ".old";  // of a step until the one that takes its place has its name
constexpr std::string_view kVisible = ".visible-";  // of files that show whether ranks share the folder

void remove_or_warn(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) log::warning("checkpoint {} cannot be removed: {}", path.string(), error.message());
}

// Deletes the step whose folder is `step_path`. The folder is renamed first, so that a job that dies while
// deleting leaves no half checkpoint under a good name, and what cannot be removed (NFS keeps files that
// another program has open) is in the way of nothing. Throws FileError if it cannot even be renamed.
void move_and_delete(const std::string& path, const std::string& step_path) {
  const std::string deleted = unused_name(step_path + ".deleted");
  rename_file("checkpoint", path, deleted);
  remove_or_warn(deleted);
}

// The same, but warns. Returns whether it is gone.
bool delete_step(const std::string& path, const std::string& step_path) {
  try {
    move_and_delete(path, step_path);
    return true;
  } catch (const FileError& error) {
    log::warning("checkpoint {} is not deleted: {}", path, error.what());
    return false;
  }
}

// The newest complete one of some steps. Where none is, the newest: opening it says what it lacks.
std::string newest_of(const std::vector<SavedStep>& steps) {
  const auto complete = std::find_if(steps.rbegin(), steps.rend(), is_complete);
  if (complete == steps.rend()) {
    refuse_checkpoint_of_pytorch(steps.back().path);
    return steps.back().path;
  }
  for (auto newer = steps.rbegin(); newer != complete; ++newer) {
    log::warning("checkpoint {} is broken and skipped: it has no {}, so it was not saved completely",
                 newer->path, kManifestName);
  }
  return complete->path;
}

}  // namespace

bool is_complete(const SavedStep& saved) { return is_there(manifest_path(saved.path)); }

std::string step_folder(const std::string& folder, int64_t step) {
  return fmt::format("{}/{}{}", folder, kPrefix, step);
}

std::vector<SavedStep> list_steps(const std::string& folder) {
  std::map<int64_t, std::string> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const bool is_replaced = name.ends_with(kReplaced);
    std::string_view number = std::string_view(name).substr(kPrefix.size());
    if (is_replaced) number.remove_suffix(kReplaced.size());
    const int64_t step = parse_number<int64_t>(number).value_or(-1);
    if (step < 0) continue;
    std::string& path = paths[step];
    if (path.empty() || !is_replaced) path = folder + "/" + name;
  }
  const bool is_absent = error == std::errc::no_such_file_or_directory;
  // Of one that is there, this says that a server has lost sight of it.
  if (is_absent && is_there(folder))
    fail<IoError>("checkpoint", "cannot list {}: it was gone for a moment", folder);
  if (error && !is_absent) fail_for_system(error.value(), "checkpoint", "cannot list " + folder);
  std::vector<SavedStep> steps;
  for (auto& [step, path] : paths) steps.push_back({step, std::move(path)});
  return steps;
}

std::string newest_complete_text(const std::string& folder) {
  try {
    const std::vector<SavedStep> steps = list_steps(folder);
    const auto complete = std::find_if(steps.rbegin(), steps.rend(), is_complete);
    if (complete == steps.rend()) return "there is no complete checkpoint";
    return fmt::format("{} is the newest complete checkpoint", complete->path);
  } catch (const std::exception& error) {
    return fmt::format("the newest complete checkpoint is not known: {}", error.what());
  }
}

void refuse_missing_step(const std::string& folder, int64_t step) {
  std::string steps;
  for (const SavedStep& saved : list_steps(folder)) add_item(steps, std::to_string(saved.step));
  fail<FileError>("checkpoint", "{} does not exist: {} has {}", step_folder(folder, step), folder,
                  steps.empty() ? "no checkpoints" : "steps " + steps);
}

namespace {

// Where neither a checkpoint nor a model is. A folder named like a step is one that was not saved completely.
void refuse_other_folder(const std::string& path, const std::vector<std::string>& names) {
  for (std::string_view file :
       {kManifestName, std::string_view("config.json"), std::string_view("model.safetensors"),
        std::string_view("model.safetensors.index.json")})
    if (contains(names, file)) return;
  refuse_checkpoint_of_pytorch(path);
  const std::string name = (fs::path(path) / "").parent_path().filename().string();
  if (name.starts_with(kPrefix)) return;
  const auto run =
      std::ranges::find_if(names, [&](const std::string& n) { return is_there(path + "/" + n + "/.lock"); });
  fail<FileError>("checkpoint",
                  "{} has neither checkpoints nor a model: expected a run's folder{}, a step-N folder or the "
                  "folder of a Hugging Face model",
                  path,
                  run == names.end() ? "" : fmt::format(" (such as {})", (fs::path(path) / *run).string()));
}

}  // namespace

std::string newest_step_or_itself(const std::string& path) {
  if (!is_folder(path))
    fail<FileError>("checkpoint", "{} {}", path, is_there(path) ? "is not a folder" : "does not exist");
  const std::vector<SavedStep> steps = list_steps(path);
  if (!steps.empty()) return newest_of(steps);
  std::string folder;
  std::vector<SavedStep> newest;
  const std::vector<std::string> names = names_in(path);
  for (const std::string& name : names) {
    const std::string within = (fs::path(path) / name).string();
    std::error_code error;
    const bool is_one = fs::is_directory(within, error);
    if (is_of_system(error.value())) fail_for_system(error.value(), "checkpoint", "cannot look at " + within);
    if (!is_one) continue;
    std::vector<SavedStep> inside = list_steps(within);
    if (inside.empty()) continue;
    if (!folder.empty()) {
      fail<FileError>("checkpoint", "{} and {} both contain checkpoints: choose one of them", folder, within);
    }
    folder = within;
    newest = std::move(inside);
  }
  if (!newest.empty()) return newest_of(newest);
  // A run locks its folders.
  if (is_there(path + "/.lock") && !is_there(path + "/config.json"))
    fail<FileError>(
        "checkpoint",
        "{}: this run has saved no checkpoint here; if its checkpoint.folder is elsewhere, give that folder",
        path);
  refuse_other_folder(path, names);
  return path;
}

void commit_step(const std::string& folder, int64_t step) {
  std::string path = step_folder(folder, step), temporary = path + ".tmp",
              old = fmt::format("{}{}", path, kReplaced);
  if (is_taken(path)) {
    // Exchanged in one step if the file system can, so that there is always a checkpoint of this step.
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
      sync_folder(folder);
      delete_step(temporary, path);
      return;
    }
    if (is_taken(old)) delete_step(old, path);
    rename_file("checkpoint", path, old);
  }
  rename_file("checkpoint", temporary, path);
  sync_folder(folder);
  if (is_taken(old)) delete_step(old, path);
}

namespace {

// One that this user may not look at may be complete: it is set aside like those that are, and never deleted.
bool is_complete_or(const SavedStep& saved, bool where_unknown) {
  try {
    return is_complete(saved);
  } catch (const NoAccess&) {
    return where_unknown;
  }
}

}  // namespace

std::vector<std::string> set_aside_after(const std::string& folder, int64_t step) {
  std::vector<std::string> paths;
  for (const SavedStep& saved : list_steps(folder)) {
    if (saved.step <= step || !is_complete_or(saved, true)) continue;
    std::string path = unused_name(step_folder(folder, saved.step) + ".abandoned");
    rename_file("checkpoint", saved.path, path);
    paths.push_back(std::move(path));
  }
  return paths;
}

std::vector<int64_t> rotate_steps(const std::string& folder, Rotation rotation, int64_t just_saved) {
  std::vector<int64_t> gone;
  if (rotation.keep_latest_k == 0) return gone;
  std::vector<SavedStep> complete = list_steps(folder);
  std::erase_if(complete, [&](const SavedStep& s) {
    const bool is_kept = rotation.keep_every > 0 && s.step % rotation.keep_every == 0;
    return is_kept || s.step <= rotation.after || !is_complete_or(s, false);
  });
  auto excess = std::ssize(complete) - rotation.keep_latest_k;
  for (const SavedStep& saved : complete) {
    if (excess <= 0) break;
    if (saved.step == just_saved) continue;
    if (delete_step(saved.path, step_folder(folder, saved.step))) gone.push_back(saved.step);
    --excess;
  }
  return gone;
}

namespace {

// A save that was not finished.
void remove_unfinished(const fs::path& path) {
  log::info("Removing {}, a save that was not finished", path.string());
  const auto blocks = [&](const FileError& error) {
    return fmt::format("{} blocks the next save: move it away; {}", path.string(), error.what());
  };
  try {
    move_and_delete(path.string(), fs::path(path).replace_extension().string());
  } catch (const IoError&) {
    throw;
  } catch (const FullDisk&) {
    throw;
  } catch (const Missing&) {
    throw;
  } catch (const NoAccess& error) {
    fail<NoAccess>("checkpoint", "{}", blocks(error));
  } catch (const FileError& error) {
    fail<FileError>("checkpoint", "{}", blocks(error));
  }
}

}  // namespace

void remove_leftovers(const std::string& folder) {
  std::vector<fs::path> leftovers;
  for (const std::string& name : names_in(folder)) {
    const fs::path at = fs::path(folder) / name;
    if (name.starts_with(kVisible)) leftovers.push_back(at);
    if (!name.starts_with(kPrefix)) continue;
    const bool is_replaced = name.ends_with(kReplaced);
    const std::string step = fs::path(at).replace_extension().string();
    // The one that was to take its place died before it had its name.
    if (is_replaced && !is_there(step)) {
      rename_file("checkpoint", at.string(), step);
      continue;
    }
    if (is_replaced || contains_text(name, ".deleted") || name.ends_with(".tmp")) leftovers.push_back(at);
  }
  for (const fs::path& path : leftovers)
    path.extension() == ".tmp" ? remove_unfinished(path) : remove_or_warn(path);
}

void check_shared_folder(const std::string& folder, PatientRanks& group) {
  std::string name, nonce;
  group.on_rank_0([&] {
    require_folder("checkpoint", folder);
    std::random_device random;
    nonce = to_hex(static_cast<uint64_t>(random()) << 32 | random());
    name = fmt::format("{}/{}{}", folder, kVisible, nonce);
    write_file_atomically(name, nonce);
  });
  name = group.of_rank_0(name);
  nonce = group.of_rank_0(nonce);
  // A network file system may remember for a few seconds that the file did not exist.
  bool visible = false;
  for (int attempt = 0; attempt < 40 && !visible; ++attempt) {
    try {
      visible = read_file(name, 64) == nonce;
    } catch (const FileError&) {
    }
    if (!visible) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::vector<std::string> answers = group.all_gather(visible ? "y" : "n");
  if (group.rank() == 0) ::unlink(name.c_str());
  std::string blind;
  for (size_t r = 0; r < answers.size(); ++r) {
    if (answers[r] != "y") add_item(blind, std::to_string(r));
  }
  if (!blind.empty()) {
    fail<FileError>(
        "checkpoint",
        "rank {} cannot see a file that rank 0 wrote to {}: checkpoints need a folder that all ranks share",
        blind, folder);
  }
}

}  // namespace ottava::checkpoint
