#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/cpu/isa.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/ops/matmul/matmul.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/golden.h"
#include "tests/support/skip.h"

// A checkpoint that an earlier version of the program wrote: it loads, and the run goes on as it would have
// then.

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

namespace {

const std::string kFolder = OTTAVA_SOURCE_DIR "/tests/golden/checkpoint";
constexpr int kSaved = 3, kSteps = 8;

/// FP8 with a history of amaxes, bf16 moments, tied embeddings: every kind of state that a checkpoint holds.
Overrides settings() {
  return kSaving + Overrides{"--model.dim",
                             "16",
                             "--model.n_layers",
                             "1",
                             "--model.tie_embeddings",
                             "true",
                             "--training.mixed_precision_param",
                             "bfloat16",
                             "--optimizer.state_dtype",
                             "bfloat16",
                             "--model.converters",
                             "quantize.linear.float8",
                             "--quantize.linear.float8.recipe_name",
                             "delayed",
                             "--quantize.linear.float8.amax_history_length",
                             "3"};
}

std::string machine() {
  return std::string(cpu::name_of(cpu::isa())) + ", " + matmul_backend_description() + ", " __VERSION__;
}

}  // namespace

TEST_CASE("a checkpoint of an earlier version goes on bitwise where it was made, closely elsewhere") {
  TinyTraining tiny;
  fs::create_directories(tiny / "run/checkpoint");
  fs::copy(kFolder + "/step-3", tiny / "run/checkpoint/step-3", fs::copy_options::recursive);
  finish(tiny, "run", settings());
  const std::vector<double> losses = logged(tiny / "run", "loss_metrics/global_avg_loss");
  const Json golden = Json::parse(read_file(kFolder + "/losses.json"), "losses.json");
  const Json::Array& expected = golden.at("losses", "").as_array("");
  REQUIRE(losses.size() == kSteps - kSaved);
  for (int i = 0; i < kSteps - kSaved; ++i) {
    INFO("step " << kSaved + 1 + i << " on " << machine());
    const double value = expected[kSaved + i].as_number("");
    if (golden.at("machine", "").as_string("") == machine()) CHECK(losses[i] == value);
    CHECK(std::abs(losses[i] - value) / value < 3e-4);  // as the golden loss curve
  }
}

TEST_CASE("write a checkpoint for later versions", "[.write]") {
  if (!writes_golden()) return skip(kWritesNoGolden);
  TinyTraining tiny;
  finish(tiny, "run", settings());
  fs::remove_all(kFolder);
  fs::create_directories(kFolder);
  fs::copy(tiny / "run/checkpoint/step-3", kFolder + "/step-3", fs::copy_options::recursive);
  Json list{Json::Array{}}, golden;
  for (double loss : logged(tiny / "run", "loss_metrics/global_avg_loss")) list.push(loss);
  golden.set("machine", machine()).set("losses", std::move(list));
  std::ofstream(kFolder + "/losses.json") << golden.dump(2) << '\n';
}
