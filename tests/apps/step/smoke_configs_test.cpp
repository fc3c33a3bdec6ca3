#include <fstream>
#include <map>

#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_training.h"

// The FP8 smoke configurations as a continuous-integration job starts them: the program, under its launcher
// where there are ranks, on the shipped tokenizers. A vocabulary of 2256 = 16 x 141 and its three ways out.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

class Smoke {
 public:
  Smoke() { std::ofstream(text()) << generated_text(400); }

  /// With few and short steps.
  Outcome run(int ranks, const std::string& config, const std::string& overrides = {}) const {
    return run_as_shipped(
        ranks, config,
        "--training.steps 4 --training.seq_len 64 --metrics.log_freq 1 --training.threads 1 " + overrides);
  }
  Outcome run_as_shipped(int ranks, const std::string& config, const std::string& overrides = {}) const {
    const std::string program = ranks == 1 ? OTTAVA : fmt::format("{} launch -n {} --", OTTAVA, ranks);
    return run_command(
        fmt::format("cd {} && {} train configs/{}.yaml --training.dataset_path {} --job.dump_folder {} "
                    "--checkpoint.enable false {} 2>&1",
                    OTTAVA_SOURCE_DIR, program, config, text(), out(), overrides));
  }
  std::map<int64_t, double> losses() const {
    std::map<int64_t, double> curve;
    const std::string lines = read_file(out() + "/metrics.jsonl");
    for (size_t at = 0; at < lines.size();) {
      const size_t end = lines.find('\n', at);
      const Json json = Json::parse(std::string_view(lines).substr(at, end - at), "metrics");
      if (const Json* loss = json.find("loss_metrics/global_avg_loss"))
        curve[json.at("step", "").as_integer("")] = loss->as_number("");
      at = end + 1;
    }
    return curve;
  }
  /// With so many of the nine layers in FP8, as the log has it.
  void trains(int layers, int ranks, const std::string& config, const std::string& overrides = {}) const {
    INFO(config << " on " << ranks << " ranks " << overrides);
    const Outcome outcome = run(ranks, config, overrides);
    INFO(outcome.output);
    REQUIRE(outcome.exit_code == 0);
    CHECK_THAT(outcome.output, Contains(fmt::format("FP8: tensorwise in {} of 9 layers", layers)));
    const std::map<int64_t, double> curve = losses();
    REQUIRE(curve.size() == 4);
    CHECK(curve.at(1) > 7.9);
    CHECK(curve.at(4) < curve.at(1) - 0.2);
  }

 private:
  std::string text() const { return folder_ / "text.txt"; }
  std::string out() const { return folder_ / "out"; }
  TemporaryFolder folder_;
};

const std::string kForced = "--quantize.linear.float8.policy '[{match: output, recipe: tensorwise}]'";

}  // namespace

TEST_CASE("smoke: one rank") {
  Smoke smoke;
  smoke.trains(8, 1, "smoke_fp8");
  CHECK_THAT(smoke.run(1, "smoke_fp8").output,
             Contains("FP8: tensorwise in 8 of 9 layers, 24 products") &&
                 Contains("output (the output layer stays in high precision)"));
}

TEST_CASE("smoke: one rank, every step of the file") {
  const Smoke smoke;
  const Outcome outcome = smoke.run_as_shipped(1, "smoke_fp8");
  INFO(outcome.output);
  REQUIRE(outcome.exit_code == 0);
  const std::map<int64_t, double> curve = smoke.losses();
  REQUIRE(curve.contains(20));
  CHECK(curve.begin()->second > 7);
  CHECK(curve.at(20) < curve.begin()->second - 2);
}

TEST_CASE("smoke: tensor parallel 2, 4 and 8 on their ranks") {
  Smoke smoke;
  smoke.trains(8, 2, "smoke_tp2_fp8");
  smoke.trains(8, 4, "smoke_tp2_fp8");
  smoke.trains(8, 8, "smoke_tp2_fp8");
  smoke.trains(8, 4, "smoke_tp4_fp8");
  smoke.trains(8, 8, "smoke_tp4_fp8");
  smoke.trains(8, 8, "smoke_tp8_fp8");
}

TEST_CASE("smoke: the output layer in FP8 is refused where 2256 rows do not split, with the ways out") {
  Smoke smoke;
  const Outcome refused = smoke.run(2, "smoke_tp2_fp8", kForced);
  CHECK(refused.exit_code != 0);
  CHECK_THAT(refused.output, Contains("2256 rows / tp 2 = 1128 is not a multiple of 16 (2256/16 = 141)") &&
                                 Contains("a vocabulary of 2560") && Contains("pad_vocabulary: true") &&
                                 Contains("recipe bf16"));
  smoke.trains(9, 2, "smoke_tp2_fp8", kForced + " --model.hf_assets_path configs/tokenizers/en-2560");
  smoke.trains(9, 2, "smoke_tp2_fp8", kForced + " --quantize.linear.float8.pad_vocabulary true");
  smoke.trains(8, 2, "smoke_tp2_fp8", "--quantize.linear.float8.policy '[{match: output, recipe: bf16}]'");
  smoke.trains(9, 4, "smoke_tp4_fp8", kForced + " --quantize.linear.float8.pad_vocabulary true");
  smoke.trains(9, 8, "smoke_tp8_fp8", kForced + " --model.hf_assets_path configs/tokenizers/en-2560");
}
