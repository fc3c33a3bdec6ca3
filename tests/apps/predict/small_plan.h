#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "apps/predict/planned_machine.h"
#include "tests/support/overrides.h"

// A model that is quickly recorded, planned for any number of H100. They communicate without NCCL, which
// would take more memory than the model.

namespace ottava::test {

inline Config small_config(const Overrides& more) {
  Overrides overrides{
      "--model.dim",       "256",  "--model.n_heads",    "4",   "--model.n_kv_heads",          "2",
      "--model.ffn_dim",   "512",  "--model.vocab_size", "512", "--training.seq_len",          "64",
      "--training.device", "cuda", "--comm.backend",     "tcp", "--training.local_batch_size", "1"};
  if (std::ranges::find(more, "--model.n_layers") == more.end())
    overrides.insert(overrides.end(), {"--model.n_layers", "9"});
  return load_config("", overrides + more);
}

struct Planned {
  Config config;
  PlannedExperiment planned;
  Machine machine;
  explicit Planned(const Overrides& more, int ranks, int ranks_per_node = 8)
      : config(small_config(more)),
        planned(plan_experiment(config, ranks, 90)),
        machine(planned_machine({.device = "h100_sxm", .ranks_per_node = ranks_per_node},
                                find_device("h100_sxm"), planned)) {}
};

inline const Overrides kFloat8 = words(
    "--model.converters [quantize.linear.float8] --quantize.linear.float8.recipe_name rowwise "
    "--quantize.linear.float8.enable_fsdp_float8_all_gather true");

}  // namespace ottava::test
