#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/cpu/isa.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/ops/matmul/matmul.h"
#include "fp8/amax_history.h"
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
  return kSaving +
         words(
             "--model.dim 16 --model.n_layers 1 --model.tie_embeddings true --training.mixed_precision_param "
             "bfloat16 --optimizer.state_dtype bfloat16 --model.converters quantize.linear.float8 "
             "--quantize.linear.float8.recipe_name delayed --quantize.linear.float8.amax_history_length 3");
}

std::string machine() {
  return std::string(cpu::name_of(cpu::isa())) + ", " + matmul_backend_description() + ", " __VERSION__;
}

}  // namespace

TEST_CASE("a checkpoint of an earlier version goes on bitwise where it was made, closely elsewhere") {
  TinyTraining tiny;
  fs::create_directories(tiny / "run/checkpoint");
  fs::copy(kFolder + "/step-3", tiny / "run/checkpoint/step-3", fs::copy_options::recursive);
  TinyTraining::Run run = tiny.start("run", settings());
  // Elsewhere losses are too far from those of the file to show what was not loaded.
  CHECK(run->state().optimizer_step == kSaved);
  CHECK(run->state().schedule_step == kSaved);
  CHECK(run->state().data_position == 2 * kSaved);
  Fsdp& parameters = run->engine().parameters();
  for (size_t p = 0; p < parameters.specs().size(); ++p) {
    INFO(parameters.specs()[p].name);
    const ParameterShard& s = parameters.shard(static_cast<int>(p));
    for (const Tensor& moment : {s.moments[Moment::exp_avg], s.moments[Moment::exp_avg_sq]}) {
      const auto* bytes = static_cast<const uint8_t*>(moment.data);
      CHECK(std::any_of(bytes, bytes + moment.bytes(), [](uint8_t byte) { return byte != 0; }));
    }
  }
  for (const fp8::AmaxHistory* history : {run->engine().float8()->history(), parameters.float8()->history()})
    CHECK(history->steps == kSaved);
  CHECK(run->run() == Trainer::End::completed);
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
