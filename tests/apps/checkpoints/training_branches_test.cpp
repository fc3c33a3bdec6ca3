#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/log.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/captured_output.h"

// Runs that go back to an earlier step, or count their steps anew: which checkpoints they leave, and where
// the same command goes on.

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace

TEST_CASE(
    "a branch that begins at load_step sets the one it leaves aside, and the same command goes on with it") {
  TinyTraining tiny;
  using Names = std::vector<std::string>;
  const Overrides saving =
      kSaving + Overrides{"--checkpoint.interval", "2", "--checkpoint.keep_latest_k", "3"};
  finish(tiny, "run", saving);
  const std::string folder = tiny / "run/checkpoint";
  CHECK((names_in(folder) == Names{"step-4", "step-6", "step-8"}));

  const Overrides back =
      saving + Overrides{"--checkpoint.load_step", "4", "--checkpoint.advance_data_steps", "3",
                         "--training.steps",       "7"};
  {
    // One that ends before its first save leaves everything as it was, and begins at step 4 again.
    const CapturedOutput log;
    log::set_level(log::Level::info);
    TinyTraining::Run run = tiny.start("run", back);
    log::set_level(log::Level::warning);
    run->step(nullptr);
    CHECK(has(log.text(), "the later checkpoints (up to step 8) are kept until its first save"));
  }
  CHECK((names_in(folder) == Names{"step-4", "step-6", "step-8"}));
  const CapturedOutput log;
  TinyTraining::Run run = tiny.start("run", back);
  CHECK(run->state().step == 4);
  const int64_t batch = run->experiment().global_batch;
  CHECK(run->state().data_position == 7 * batch);
  CHECK(run->run() == Trainer::End::completed);
  const Everything expected = everything_of(*run.trainer);
  CHECK((names_in(folder) == Names{"step-4", "step-6", "step-6.abandoned", "step-7", "step-8.abandoned"}));
  CHECK(has(log.text(), "went back to step 4, so the later checkpoints of the earlier branch are renamed"));
  CHECK(has(log.text(), "checkpoint/step-6.abandoned, "));

  log::set_level(log::Level::info);
  CHECK((everything_of(*tiny.start("run", back).trainer) == expected));
  log::set_level(log::Level::warning);
  CHECK(has(log.text(),
            "belongs to the branch that this configuration began (load_step 4, advance_data_steps 3)"));
  CHECK(tiny.start("run", saving)->state() == expected.state);
  TinyTraining::Run longer = tiny.start("run", back + Overrides{"--training.steps", "10"});
  CHECK(longer->state().step == 7);
  CHECK(longer->run() == Trainer::End::completed);
  CHECK((names_in(folder) == Names{"step-10", "step-6.abandoned", "step-7", "step-8", "step-8.abandoned"}));
  // What it began at has been deleted since.
  CHECK(tiny.start("run", back)->state().step == 10);
  CHECK(tiny.start("run", back)->state().data_position == 13 * batch);

  // Another way back is another branch.
  const Overrides other = saving + Overrides{"--checkpoint.load_step", "7", "--training.steps", "8"};
  CHECK(finish(tiny, "run", other).state.branch == "load_step 7");
  CHECK((names_in(folder) == Names{"step-10.abandoned", "step-6.abandoned", "step-7", "step-8",
                                   "step-8.abandoned", "step-8.abandoned-2"}));
}

TEST_CASE("steps that are counted anew begin a branch, which is begun once") {
  TinyTraining tiny;
  finish(tiny, "run", kSaving);
  const Overrides anew =
      kSaving + Overrides{"--checkpoint.exclude_from_loading", "train_state", "--training.steps", "4"};
  CHECK(nothing_to_train(tiny.config("run", anew), *tiny.start("other").ranks) == "");
  const Everything expected = finish(tiny, "run", anew);
  CHECK((names_in(tiny / "run/checkpoint") == std::vector<std::string>{"step-3", "step-3.abandoned", "step-4",
                                                                       "step-6.abandoned",
                                                                       "step-8.abandoned"}));
  TinyTraining::Run again = tiny.start("run", anew);
  CHECK((everything_of(*again.trainer) == expected));
  CHECK(has(nothing_to_train(tiny.config("run", anew), *again.ranks), "This run is finished"));
}

TEST_CASE("steps that are counted anew from a new folder on are not counted anew by the same command") {
  TinyTraining tiny;
  finish(tiny, "first", kSaving);
  const Overrides anew = kSaving + Overrides{"--checkpoint.exclude_from_loading", "train_state"},
                  whole_run{"--checkpoint.initial_load_path", tiny / "first/checkpoint/step-6",
                            "--checkpoint.initial_load_model_only", "false"};
  for (const bool has_initial : {false, true}) {
    INFO(has_initial);
    const std::string name = has_initial ? "from the first" : "from nothing";
    const Overrides overrides = anew + (has_initial ? whole_run : Overrides{});
    const Overrides part = overrides + Overrides{"--training.steps", "4", "--lr_scheduler.total_steps", "8"};
    CHECK(finish(tiny, name, part, 0).state.branch == "the newest, without train_state");
    finish(tiny, name, overrides + Overrides{"--lr_scheduler.total_steps", "8"}, 4);
    CHECK((names_in(tiny / (name + "/checkpoint")) ==
           std::vector<std::string>{"step-3", "step-4", "step-6", "step-8"}));
    CHECK(has(nothing_to_train(tiny.config(name, overrides), *tiny.start("other").ranks),
              "This run is finished"));
  }
}
