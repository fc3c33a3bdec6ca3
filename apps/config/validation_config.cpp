#include "apps/config/validation_config.h"

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, ValidationConfig& c) {
  constexpr double kMost = 1 << 30;
  s.meaning("loss on held-out data, computed during training");
  s.field("enable", c.enable, "validate at step 1 and every freq steps");
  s.field("dataset", c.dataset, "name shown in the log; the data itself is given by dataset_path");
  s.field("dataset_path", c.dataset_path, "validation data, given as for training.dataset_path");
  s.list("datasets", c.datasets,
         "several named sets of validation data, used instead of dataset_path, each with a loss of its own");
  s.field("local_batch_size", c.local_batch_size, "sequences per data-parallel rank and batch")
      .range(1, kMost)
      .unit("sequences");
  s.field("seq_len", c.seq_len, "sequence length").range(1, kMostTokens).unit("tokens");
  s.field("freq", c.freq, "training steps between validations").at_least(1).unit("steps");
  s.field("steps", c.steps,
          "batches per validation, starting over where the data ends; -1: all of the data once")
      .at_least(1)
      .or_value(-1)
      .unit("batches");
  s.section("dataloader", c.dataloader);
}

void validate(const ValidationConfig& c, config::Problems& problems) {
  validate(c.datasets, problems);
  if (!c.datasets.empty() && !c.dataset_path.empty())
    problems.add("validation.datasets", "validation.dataset_path is set as well; set only one of the two");
  if (const int64_t tokens = c.local_batch_size * c.seq_len; tokens > kMostTokens)
    problems.add("validation.local_batch_size", "{} x seq_len {} = {} tokens; expected at most {}",
                 c.local_batch_size, c.seq_len, tokens, kMostTokens);
}

}  // namespace ottava
