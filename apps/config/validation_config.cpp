#include "apps/config/validation_config.h"

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, ValidationConfig& c) {
  constexpr double kMost = 1 << 30;
  s.meaning("loss on other text, between steps");
  s.field("enable", c.enable, "validate at step 1 and every freq steps");
  s.field("dataset", c.dataset, "a name for the log; the text itself is dataset_path");
  s.field("dataset_path", c.dataset_path,
          "text to validate on: file, folder, glob, @file that lists them, or several");
  s.list("datasets", c.datasets,
         "in place of dataset_path: several sets by name, each with a loss of its own");
  s.field("local_batch_size", c.local_batch_size, "sequences per data-parallel rank and pass")
      .range(1, kMost)
      .unit("sequences");
  s.field("seq_len", c.seq_len, "length of a sequence").range(1, kMost).unit("tokens");
  s.field("freq", c.freq, "training steps between validations").at_least(1).unit("steps");
  s.field("steps", c.steps,
          "batches per validation, which begin the text again where it ends; -1: all of the text, once")
      .at_least(-1)
      .unit("batches");
  s.section("dataloader", c.dataloader);
}

void validate(const ValidationConfig& c, config::Problems& problems) {
  validate(c.datasets, problems);
  if (!c.datasets.empty() && !c.dataset_path.empty())
    problems.add("validation.datasets", "validation.dataset_path is given too: give one of the two");
  if (c.steps == 0)
    problems.add("validation.steps", "0 batches validate nothing; expected -1 (all) or at least 1");
}

}  // namespace ottava
