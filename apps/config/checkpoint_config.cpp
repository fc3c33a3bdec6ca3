#include "apps/config/checkpoint_config.h"

#include <fmt/core.h>

#include <utility>

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, CheckpointConfig& c) {
  s.meaning("saving and resuming; every checkpoint is a folder that Hugging Face loads");
  s.field("enable", c.enable, "save, and resume from the newest checkpoint of the folder");
  s.field("folder", c.folder, "folder inside job.dump_folder");
  s.field("interval", c.interval, "steps between checkpoints").at_least(1).unit("steps");
  s.field("keep_latest_k", c.keep_latest_k, "older ones are deleted; 0: keep all").at_least(0);
  s.field("keep_every", c.keep_every,
          "checkpoints of steps that are multiples of it are kept for good, beside the latest; 0: none")
      .at_least(0)
      .unit("steps");
  s.field(
       "load_step", c.load_step,
       "checkpoint to go back to: the first save from there renames later ones to step-N.abandoned, and the "
       "same command goes on with what it began; -1: resume from the newest good one")
      .at_least(-1)
      .unit("steps");
  s.field("advance_data_steps", c.advance_data_steps,
          "after loading load_step, leave out the data of so many steps: to pass a stretch on which training "
          "diverged; stages of a mixture, which are places in the data, come as much sooner")
      .at_least(0)
      .unit("steps");
  s.field(
      "load_only", c.load_only,
      "load, but never save; metrics of a run that goes on from its own checkpoint then go to load_only/ in "
      "job.dump_folder, so that those of the run stay");
  s.field(
       "exclude_from_loading", c.exclude_from_loading,
       "parts that start afresh, at every start or, with load_step or train_state among them, when a branch "
       "begins: train_state counts steps and tokens, lr_scheduler is the position in the schedule")
      .one_of({"optimizer", "lr_scheduler", "dataloader", "train_state", "float8_history"})
      .rename_value("data_loader", "dataloader")
      .refuse_value("model",
                    "without its weights a checkpoint continues nothing: start a run in another dump_folder");
  s.field(
      "initial_load_path", c.initial_load_path,
      "checkpoint, folder of a run (its newest checkpoint) or Hugging Face folder to start from, when the "
      "run has none of its own");
  s.field("initial_load_model_only", c.initial_load_model_only, "take only weights from initial_load_path");
  s.field("last_save_model_only", c.last_save_model_only,
          "the last save holds only weights, in export_dtype: the run cannot go on from it");
  s.choice("export_dtype", c.export_dtype,
           {{"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}},
           "dtype of the weights that last_save_model_only saves");
  using Async = CheckpointConfig::Async;
  s.choice("async_mode", c.async_mode,
           {{"disabled", Async::disabled},
            {"async", Async::async},
            {"async_with_pinned_mem", Async::async_with_pinned_mem}},
           "write in the background from a copy in host memory; async_with_pinned_mem: pinned, filled from a "
           "GPU beside the next step");
  s.field("enable_first_step_checkpoint", c.enable_first_step_checkpoint,
          "save after step 1 too, which proves that saving works");

  s.renamed("enable_checkpoint", "checkpoint.enable");
  s.renamed("initial_load_model_weights_only", "checkpoint.initial_load_model_only");
  s.renamed("last_save_model_weights_only", "checkpoint.last_save_model_only");
}

void validate(const CheckpointConfig& c, config::Problems& problems) {
  // last_save_model_only is left alone: TorchTitan's files set it although they save nothing.
  for (const auto& [key, is_set] :
       {std::pair{"load_step", c.load_step >= 0}, std::pair{"load_only", c.load_only},
        std::pair{"exclude_from_loading", !c.exclude_from_loading.empty()}})
    if (is_set && !c.enable)
      problems.add(fmt::format("checkpoint.{}", key), "it goes with checkpoint.enable: true");
  if (c.keep_every % c.interval != 0) {
    problems.add("checkpoint.keep_every",
                 "{} is not a multiple of interval {}: no checkpoint is saved at most of its steps",
                 c.keep_every, c.interval);
  }
  if (c.advance_data_steps > 0 && c.load_step < 0) {
    problems.add("checkpoint.advance_data_steps",
                 "it goes with checkpoint.load_step, the step to go back to: without, every start would "
                 "leave out data");
  }
  if (c.keep_latest_k == 1) {
    problems.add(
        "checkpoint.keep_latest_k",
        "1 would delete the only good checkpoint while the next is written; expected 0 (all) or at least 2");
  }
}

}  // namespace ottava
