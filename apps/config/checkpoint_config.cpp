#include "apps/config/checkpoint_config.h"

#include <fmt/core.h>

#include <utility>

#include "apps/config/limits.h"
#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, CheckpointConfig& c) {
  s.meaning("saving and resuming; every checkpoint is a folder that Hugging Face's libraries can load");
  s.field("enable", c.enable, "save checkpoints, and resume from the newest one in the folder");
  s.field("folder", c.folder,
          "folder of the checkpoints, inside job.dump_folder unless its path leads elsewhere; commands then "
          "need this folder in place of the run's");
  s.field("interval", c.interval, "steps between checkpoints").at_least(1).unit("steps");
  s.field("keep_latest_k", c.keep_latest_k,
          "number of latest checkpoints to keep, besides those of keep_every; older ones are deleted, but "
          "while steps are skipped as not finite none from before the first of them; 0: keep all; 1 would "
          "delete the only good one while the next is written")
      .range(2, 1 << 30)
      .or_value(0);
  s.field(
       "keep_every", c.keep_every,
       "also keep, for good, the checkpoints whose step is a multiple of this, which keep_latest_k does not "
       "count; 0: none")
      .at_least(0)
      .unit("steps");
  s.field("load_step", c.load_step,
          "step of the checkpoint to go back to; the first save after that renames later checkpoints to "
          "step-N.abandoned, and from then on the same command resumes the new branch; -1: resume from the "
          "newest good checkpoint")
      .at_least(-1)
      .unit("steps");
  s.field("advance_data_steps", c.advance_data_steps,
          "after going back to load_step, skip the data of this many steps, such as data on which training "
          "diverged")
      .range(0, kMostSteps)
      .unit("steps");
  s.field("load_only", c.load_only,
          "load a checkpoint but never save; if the run resumes its own checkpoint, metrics go to load_only/ "
          "in job.dump_folder, so that its earlier metrics are kept");
  s.field("exclude_from_loading", c.exclude_from_loading,
          "parts of a checkpoint that are not loaded but start afresh, at every start or, if load_step is "
          "set or train_state is listed, only when the new branch begins; train_state: step and token "
          "counts; lr_scheduler: position in the schedule")
      .one_of({"optimizer", "lr_scheduler", "dataloader", "train_state", "float8_history"})
      .rename_value("data_loader", "dataloader")
      .refuse_value("model",
                    "a run cannot continue without the weights of its checkpoint; to start anew, set another "
                    "job.dump_folder");
  s.field("initial_load_path", c.initial_load_path,
          "checkpoint, run folder (its newest checkpoint) or Hugging Face folder to start from if the run "
          "has no checkpoint of its own");
  s.field("initial_load_model_only", c.initial_load_model_only,
          "load only the weights from initial_load_path, not the training state");
  s.field(
      "last_save_model_only", c.last_save_model_only,
      "save only the weights, in export_dtype, at the end of the run, which then can be resumed from that "
      "checkpoint only with optimizer in exclude_from_loading");
  s.choice("export_dtype", c.export_dtype,
           {{"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}},
           "dtype of the weights saved by last_save_model_only");
  using Async = CheckpointConfig::Async;
  s.choice("async_mode", c.async_mode,
           {{"disabled", Async::disabled},
            {"async", Async::async},
            {"async_with_pinned_mem", Async::async_with_pinned_mem}},
           "how checkpoints are written; disabled: training waits; async: in the background from a copy in "
           "host memory; async_with_pinned_mem: in the background from a copy in pinned memory, which a GPU "
           "fills during the next step, and on a CPU the same as async");
  s.field("enable_first_step_checkpoint", c.enable_first_step_checkpoint,
          "also save after step 1, to make sure that saving works");

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
      problems.add(fmt::format("checkpoint.{}", key), "this key needs checkpoint.enable: true");
  if (c.keep_every % c.interval != 0) {
    problems.add("checkpoint.keep_every",
                 "{} is not a multiple of checkpoint.interval {}, so that most of these steps save no "
                 "checkpoint; expected a multiple",
                 c.keep_every, c.interval);
  }
  if (c.advance_data_steps > 0 && c.load_step < 0) {
    problems.add("checkpoint.advance_data_steps",
                 "this key needs checkpoint.load_step, the step to go back to; without it, every start would "
                 "skip data");
  }
}

}  // namespace ottava
