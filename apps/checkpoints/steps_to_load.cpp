#include "apps/checkpoints/steps_to_load.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "apps/checkpoints/due_results.h"
#include "apps/checkpoints/model_files.h"
#include "apps/data/resumed_data.h"
#include "apps/step/training_state.h"
#include "core/contains.h"
#include "core/io/attempts.h"
#include "core/io/file.h"
#include "core/log.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/patient_ranks.h"

namespace ottava {

std::string branch_of(const CheckpointConfig& c) {
  if (c.load_step < 0 && !contains(c.exclude_from_loading, "train_state")) return "";
  std::string text = c.load_step < 0 ? "the newest" : fmt::format("load_step {}", c.load_step);
  if (c.advance_data_steps > 0) text += fmt::format(", advance_data_steps {}", c.advance_data_steps);
  if (!c.exclude_from_loading.empty())
    text += fmt::format(", without {}", fmt::join(c.exclude_from_loading, ", "));
  return text;
}

namespace {

// In three attempts, of all that are made at it in one start.
template <class Work>
auto read_from(const checkpoint::SavedStep& saved, GivenUp& unreadable, const Work& work) {
  const std::string complaint = fmt::format("checkpoint {} could not be read", saved.path);
  return unreadable.attempt(saved.path, {.complaint = complaint}, work);
}

// The newest checkpoint that says which branch it is of, if it is `branch`.
const checkpoint::SavedStep* newest_of_branch(const std::vector<checkpoint::SavedStep>& steps,
                                              const std::string& branch, GivenUp& unreadable) {
  for (auto saved = steps.rbegin(); saved != steps.rend(); ++saved) {
    const std::string path = fmt::format("{}/{}", saved->path, kStateName);
    try {
      const std::string text = read_from(*saved, unreadable, [&] { return read_file(path); });
      return parse_training_state(text, path).branch == branch ? &*saved : nullptr;
    } catch (const Error&) {  // broken: loading names it
    }
  }
  return nullptr;
}

}  // namespace

std::string end_of_run(const TrainingConfig& c) {
  return c.epochs ? fmt::format("step {}, where training.epochs {:g} end", c.steps, *c.epochs)
                  : fmt::format("training.steps {}", c.steps);
}

StepsToLoad steps_to_load(const Config& c, GivenUp& unreadable) {
  StepsToLoad out;
  if (!c.checkpoint.enable) return out;
  const std::string folder = c.job.in_dump_folder(c.checkpoint.folder);
  out.steps =
      in_three_attempts({.complaint = fmt::format("the list of checkpoints in {} could not be read", folder)},
                        [&] { return checkpoint::list_steps(folder); });
  const int64_t wanted = c.checkpoint.load_step;
  const std::string branch = branch_of(c.checkpoint);
  if (branch.empty()) return out;
  const checkpoint::SavedStep* newest = newest_of_branch(out.steps, branch, unreadable);
  out.is_of_branch = newest != nullptr;
  if (wanted < 0) return out;
  // Steps that are counted anew may not have reached load_step yet.
  const int64_t first = newest ? std::min(wanted, newest->step) : wanted;
  std::erase_if(out.steps, [&](const auto& saved) {
    return out.is_of_branch ? saved.step < first : saved.step != wanted;
  });
  return out;
}

StepsToLoad whole_steps_to_load(const Config& c, GivenUp& unreadable) {
  StepsToLoad out = steps_to_load(c, unreadable);
  while (!out.steps.empty()) {
    const checkpoint::SavedStep& newest = out.steps.back();
    try {
      read_from(newest, unreadable, [&] { checkpoint::open_checkpoint(newest.path); });
      break;
    } catch (const FileError&) {
      out.steps.pop_back();
    }
  }
  return out;
}

std::string initial_path_of(const Config& c) {
  return checkpoint::newest_step_or_itself(
      find_input(c, "checkpoint.initial_load_path", *c.checkpoint.initial_load_path).string());
}

TrainingState state_to_load(const Experiment& e, RankGroups& ranks) {
  const CheckpointConfig& c = e.config.checkpoint;
  checkpoint::PatientRanks group(*ranks.control);
  std::string text;
  group.on_rank_0([&] {
    TrainingState out;
    const auto [steps, is_of_branch] = whole_steps_to_load(e.config, ranks.unreadable);
    const bool is_given = c.initial_load_path && !c.initial_load_model_only;
    try {
      if (!steps.empty() || is_given) {
        const std::string folder = steps.empty() ? initial_path_of(e.config) : steps.back().path,
                          path = fmt::format("{}/{}", folder, kStateName);
        const TrainingState saved = parse_training_state(read_file(path), path);
        const auto excludes = [&, goes_on = is_of_branch](std::string_view what) {
          return !goes_on && contains(c.exclude_from_loading, what);
        };
        out.sequences_per_step = saved.sequences_per_step;
        if (!excludes("train_state")) out.step = saved.step;
        if (!excludes("dataloader")) out.data_position = saved.data_position, out.mixture = saved.mixture;
        if (!is_of_branch) out.data_position += samples_left_out(e);
      }
    } catch (const Error&) {  // said when it is loaded
    }
    text = to_json(out);
  });
  return parse_training_state(group.of_rank_0(text), "state to load");
}

bool begins_without_moments(const Config& c, RankGroups& ranks) {
  checkpoint::PatientRanks group(*ranks.control);
  std::string text;
  group.on_rank_0([&] {
    const std::vector<checkpoint::SavedStep> steps = whole_steps_to_load(c, ranks.unreadable).steps;
    if (!steps.empty() && !checkpoint::open_checkpoint(steps.back().path).has_optimizer()) text = "yes";
  });
  return !group.of_rank_0(text).empty();
}

void check_steps_to_load(const Experiment& e, RankGroups& ranks) {
  const CheckpointConfig& c = e.config.checkpoint;
  if (!c.enable) return;
  checkpoint::PatientRanks(*ranks.control).on_rank_0([&] {
    const std::vector<checkpoint::SavedStep> steps = steps_to_load(e.config, ranks.unreadable).steps;
    if (c.load_step >= 0 && steps.empty())
      checkpoint::refuse_missing_step(e.config.job.in_dump_folder(c.folder), c.load_step);
    for (auto saved = steps.rbegin(); saved != steps.rend(); ++saved) {
      try {
        return require_same_model(e, saved->path);
      } catch (const FileError&) {  // broken: loading names it
      }
    }
  });
}

// The newest may be of the very update that broke the weights, so the one before it is named too. With a
// checkpoint.load_step that is set already, the command would continue its branch, wherever that has led.
std::string advice_to_go_back(const CheckpointConfig& c, const std::string& folder, int64_t step) {
  try {
    std::vector<checkpoint::SavedStep> steps = checkpoint::list_steps(folder);
    const int64_t newest = steps.empty() ? 0 : steps.back().step;
    std::erase_if(steps, [&](const checkpoint::SavedStep& saved) {
      return saved.step > step || !checkpoint::is_complete(saved);
    });
    if (steps.empty()) return "";
    const auto begun_anew = [&](int64_t saved) -> std::string {
      if (c.load_step != saved || newest == saved) return "";
      return fmt::format(", which begins anew once the later checkpoints are moved out of {}", folder);
    };
    const int64_t last = steps.back().step;
    std::string text =
        fmt::format("; go on from step {0}: checkpoint.load_step {0}{1}", last, begun_anew(last));
    if (steps.size() > 1) {
      const int64_t before = steps.end()[-2].step;
      const std::string how = begun_anew(before);
      text += fmt::format(", or {}{}{} if the update of step {} broke the weights", before, how,
                          how.empty() ? "" : ",", last);
    }
    return text + "; with it, checkpoint.advance_data_steps leaves out data that is at fault";
  } catch (const std::exception& error) {
    log::warning("cannot tell which checkpoints there are: {}", error.what());
    return "";
  }
}

namespace {

std::string how_to_continue(const Config& c, const std::string& finished) {
  if (contains(c.checkpoint.exclude_from_loading, "optimizer") ||
      checkpoint::open_checkpoint(finished).has_optimizer())
    return fmt::format("To continue training, raise training.{}", c.training.epochs ? "epochs" : "steps");
  return fmt::format(
      "It has only weights (checkpoint.last_save_model_only); to train further from them, start a run in "
      "another job.dump_folder with checkpoint.initial_load_path: {}",
      finished);
}

}  // namespace

std::string nothing_to_train(const Config& c, RankGroups& ranks) {
  if (!c.checkpoint.enable) return "";
  checkpoint::PatientRanks group(*ranks.control);
  std::string text;
  group.on_rank_0([&] {
    const auto [steps, is_of_branch] = whole_steps_to_load(c, ranks.unreadable);
    // A branch that counts its steps anew begins at 0.
    if (!is_of_branch && contains(c.checkpoint.exclude_from_loading, "train_state")) return;
    if (steps.empty() || steps.back().step < c.training.steps) return;
    const checkpoint::SavedStep& newest = steps.back();
    // Metrics of later steps would be lost if the run went back to this one.
    const bool is_last =
        checkpoint::list_steps(c.job.in_dump_folder(c.checkpoint.folder)).back().step == c.training.steps;
    if (is_last && !results_missing(c, newest.step).empty()) return;
    text = newest.step == c.training.steps
               ? fmt::format(
                     "This run is finished: {} holds step {} of {}. {}; {}to start a new run, choose another "
                     "job.dump_folder",
                     newest.path, newest.step, c.training.steps, how_to_continue(c, newest.path),
                     is_of_branch ? "to begin the branch anew, move its checkpoints away; " : "")
               : fmt::format(
                     "There is nothing to train: {} is past {}. To go back to an earlier checkpoint, set "
                     "checkpoint.load_step",
                     newest.path, end_of_run(c.training));
  });
  return group.of_rank_0(text);
}

}  // namespace ottava
