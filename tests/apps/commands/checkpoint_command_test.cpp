#include "apps/commands/checkpoint_command.h"

#include <filesystem>
#include <sstream>

#include "core/io/file.h"
#include "parallel/checkpoint/saver.h"
#include "tests/parallel/checkpoint/tiny_model.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace ottava {
namespace {

using namespace checkpoint;
using Catch::Matchers::Contains;

enum class Kept { everything, model };

void save(const std::string& folder, int64_t step, int64_t version, Kept kept = Kept::everything) {
  std::vector<ParameterSpec> specs = tiny_model();
  PatientRanks group;
  TinyRank rank(specs, {});
  rank.fill(version);
  rank.parameters.with_optimizer = kept == Kept::everything;
  CheckpointSaver saver({.folder = folder, .layout = "pp 1 x tp 1 = 1", .max_file_bytes = 9000}, group);
  saver.save({.step = step,
              .parameters = rank.parameters,
              .texts = {{"training_state.json", "{\"step\": 7, \"loss_scale\": 1.5}"}}});
}

TEST_CASE("checkpoint inspect: step, layout, size, state; tensors on request") {
  TemporaryFolder folder;
  save(folder.path(), 6, 1, Kept::model);
  save(folder.path(), 7, 1);
  std::ostringstream newest, list, model;
  inspect_checkpoint({.path = folder.path()}, newest);
  CHECK_THAT(newest.str(), Contains("step-7\n") &&
                               Contains("step:     7, saved by 1 rank (pp 1 x tp 1 = 1)") &&
                               Contains("model:    5,916 parameters in 14 tensors (14 F32)") &&
                               Contains("optimizer: 28 tensors") &&
                               Contains("state:\n  step                                     7\n"
                                        "  loss_scale                               1.5\n"));
  CHECK_THAT(newest.str(), !Contains("q_proj"));
  inspect_checkpoint({.path = folder / "step-7", .tensors = CheckpointInspectOptions::Tensors::list}, list);
  CHECK_THAT(list.str(),
             Contains("model.layers.0.self_attn.q_proj.weight.exp_avg_sq") && Contains("[24, 20]"));
  inspect_checkpoint({.path = folder / "step-6"}, model);
  CHECK_THAT(model.str(), Contains("optimizer: none: this checkpoint can start a run but not resume one"));
  std::ostringstream out;
  CHECK_THROWS_WITH(inspect_checkpoint({.path = folder / "none"}, out), Contains("does not exist"));
  std::filesystem::create_directory(folder / "empty");
  CHECK_THROWS_WITH(inspect_checkpoint({.path = folder / "empty"}, out),
                    Contains("has neither checkpoints nor a model"));
  for (const char* name : {"llama", "step-9"}) {
    std::filesystem::create_directory(folder / name);
    write_file_synced(folder / name + "/config.json", "{}");
  }
  for (const std::string& path : {folder / "llama", folder / "llama/"}) {
    CHECK_THROWS_WITH(
        inspect_checkpoint({.path = path}, out),
        Contains("llama") &&
            Contains("is a Hugging Face model without the manifest.json that checkpoints of runs have"));
    CHECK_THROWS_WITH(verify_checkpoint(CheckpointVerifyOptions{path}, out),
                      Contains("is a Hugging Face model"));
  }
  CHECK_THROWS_WITH(inspect_checkpoint({.path = folder / "step-9"}, out),
                    Contains("it was not saved completely"));
}

TEST_CASE("checkpoint verify: whole, or what is not") {
  TemporaryFolder folder;
  save(folder.path(), 7, 1);
  std::ostringstream good, bad;
  CHECK(verify_checkpoint(CheckpointVerifyOptions{folder.path()}, good));
  CHECK_THAT(good.str(), Contains("all 42 tensors and all files are as they were saved"));
  File file = File::open_for_writing(folder / "step-7/model-00001-of-00003.safetensors");
  file.write_at("x", 1, file.size() - 1);
  CHECK_FALSE(verify_checkpoint(CheckpointVerifyOptions{folder / "step-7"}, bad));
  CHECK_THAT(bad.str(), Contains("changed since it was saved") && Contains(": 1 problem\n"));
}

TEST_CASE("checkpoint diff: equal, different, missing") {
  TemporaryFolder folder;
  save(folder / "a", 1, 1);
  save(folder / "b", 1, 2);
  save(folder / "c", 1, 1, Kept::model);
  auto diff = [&](CheckpointDiffOptions options, bool same) {
    std::ostringstream out;
    CHECK(diff_checkpoints(options, out) == same);
    return out.str();
  };
  CHECK(diff({.a = folder / "a", .b = folder / "a"}, true) ==
        "weights: 0 of 14 tensors in both differ\noptimizer: 0 of 28 tensors in both differ\n");
  CHECK_THAT(diff({.a = folder / "a", .b = folder / "b", .largest = 3}, false),
             Contains("weights: 14 of 14 tensors in both differ") && Contains("  and 11 more") &&
                 Contains("relative"));
  CHECK_THAT(diff({.a = folder / "a", .b = folder / "b", .largest = 0}, false), !Contains("more"));
  CHECK_THAT(diff({.a = folder / "a", .b = folder / "c"}, false),
             Contains("optimizer: only") && Contains("a/step-1 has any"));
  diff({.a = folder / "a", .b = folder / "c", .what = CheckpointDiffOptions::What::weights}, true);
}

}  // namespace
}  // namespace ottava
