#include "apps/predict/full_ranks.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "apps/predict/sample_step.h"
#include "tests/apps/predict/small_plan.h"
#include "tests/support/catch.h"
#include "tests/support/overrides.h"

// The memory of a plan is that of the fullest rank of all, of which few are recorded.

using namespace ottava;
using namespace ottava::test;

namespace {

Overrides model(const Overrides& more) {
  return words(
             "--model.dim 512 --model.n_layers 4 --model.n_heads 8 --model.head_dim 16 --model.n_kv_heads 2 "
             "--model.ffn_dim 2048 --training.seq_len 128 --activation_checkpoint.mode full") +
         more;
}

const Overrides kMuon{"--optimizer.name", "Muon"};

struct Case {
  int ranks;
  Overrides keys;
};

}  // namespace

TEST_CASE("the memory of a plan is that of the fullest of all ranks, by a few of them") {
  const Case cases[] = {
      {4, {}},
      {4,
       {"--parallelism.context_parallel_degree", "2", "--training.seq_len", "1024", "--model.attn_mask_type",
        "block_causal"}},
      {3, kMuon},
      {2,
       {"--optimizer.name",   "Muon", "--optimizer.param_groups", "[{match: output, optimizer_name: Muon}]",
        "--model.dim",        "128",  "--model.n_layers",         "1",
        "--model.n_heads",    "3",    "--model.n_kv_heads",       "3",
        "--model.head_dim",   "32",   "--model.ffn_dim",          "144",
        "--model.vocab_size", "2256", "--training.seq_len",       "16"}},
      {8,
       {"--parallelism.tensor_parallel_degree", "4", "--optimizer.name", "Muon", "--model.n_layers", "2",
        "--model.n_kv_heads", "8", "--model.dim", "128"}},
      {12,
       {"--parallelism.tensor_parallel_degree", "4", "--optimizer.name", "Muon", "--model.n_layers", "5",
        "--model.n_kv_heads", "8", "--model.ffn_dim", "1536"}},
      {16, {"--parallelism.tensor_parallel_degree", "4", "--optimizer.name", "Muon"}},
      {16,
       {"--parallelism.tensor_parallel_degree", "2", "--parallelism.context_parallel_degree", "2",
        "--parallelism.data_parallel_replicate_degree", "2", "--training.seq_len", "512", "--optimizer.name",
        "Muon"}},
      {24,
       {"--parallelism.tensor_parallel_degree", "4", "--parallelism.pipeline_parallel_degree", "2",
        "--training.local_batch_size", "2", "--optimizer.name", "Muon", "--model.n_kv_heads", "1",
        "--model.dim", "128"}},
      {32,
       {"--parallelism.tensor_parallel_degree", "4", "--parallelism.pipeline_parallel_degree", "2",
        "--training.local_batch_size", "2", "--optimizer.name", "Muon", "--model.n_layers", "5",
        "--model.ffn_dim", "256", "--activation_checkpoint.mode", "none"}},
  };
  int not_the_first = 0;
  for (const std::string device : {"cpu", "cuda"}) {
    for (const auto& [ranks, keys] : cases) {
      const Config config = small_config(model(keys) + Overrides{"--training.device", device});
      const PlannedExperiment p = plan_experiment(config, ranks, device == "cpu" ? 0 : 90);
      const Mesh& mesh = p.experiment.mesh;
      INFO(device << " " << mesh.describe() << " " << fmt::format("{}", fmt::join(keys, " ")));
      const std::vector<StepPlan> roles = sample_roles(p.experiment.shape, p.device, mesh);
      const int in_place = ranks / static_cast<int>(roles.size());
      for (int role = 0; role < static_cast<int>(roles.size()); ++role) {
        const int first = first_rank_of_role(mesh, role);
        int64_t most = 0;
        for (int rank = first; rank < first + in_place; ++rank) {
          const int64_t bytes = record_rank(p.experiment.shape, p.device, mesh, rank).memory.total_bytes();
          most = std::max(most, bytes);
          if (rank == roles[role].rank) CHECK(roles[role].memory.total_bytes() == bytes);
        }
        CHECK(roles[role].memory.total_bytes() == most);
        not_the_first += roles[role].rank != first;
        CHECK(ranks_perhaps_fuller(p.experiment.shape, p.device, mesh, role).size() <= 10);
      }
    }
  }
  CHECK(not_the_first >= 8);
}
