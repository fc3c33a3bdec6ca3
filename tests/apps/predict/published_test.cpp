#include <cmath>
#include <map>

#include "apps/predict/planned_machine.h"
#include "apps/predict/sample_step.h"
#include "apps/predict/step_time.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/overrides.h"

using namespace ottava;

namespace {

double planned_tokens_per_second(const Json& row) {
  test::Overrides overrides = test::words(
      "--training.device cuda --model.vocab_size 128256 --training.seq_len 8192 --model.name llama3 "
      "--activation_checkpoint.selective_ac_option op");
  for (const auto& [key, value] : row.at("keys", "row").as_object("keys"))
    overrides.insert(overrides.end(), {"--" + key, value.as_string("value")});
  const std::string& name = row.at("device", "row").as_string("device");
  const MachineChoice choice{
      .device = name.ends_with(".yaml") ? OTTAVA_SOURCE_DIR "/tests/apps/predict/" + name : name};
  const DeviceTable device = find_device(choice.device);
  const auto gpus = static_cast<int>(row.at("gpus", "row").as_integer("gpus"));
  const PlannedExperiment planned = plan_experiment(load_config("", overrides), gpus, device.capability);
  const Experiment& e = planned.experiment;
  const Machine machine = planned_machine(choice, device, planned);
  const StepTime time = predict_step(sample_roles(e.shape, planned.device, e.mesh), machine);
  return static_cast<double>(e.tokens_per_step()) / time.seconds / gpus;
}

}  // namespace

TEST_CASE("layouts and precisions of one model are to each other as others measured") {
  const Json published = Json::parse(read_file(OTTAVA_SOURCE_DIR "/tests/apps/predict/published_steps.json"),
                                     "published_steps.json");
  std::map<std::string, std::pair<double, double>> speeds;  // published, planned
  for (const Json& row : published.at("rows", "file").as_array("rows")) {
    const std::string& name = row.at("name", "row").as_string("name");
    speeds[name] = {row.at("tokens_per_second", "row").as_number("speed"), planned_tokens_per_second(row)};
    WARN(fmt::format("{}: planned {:.0f} tokens/s a GPU, published {:.0f} ({:+.0f}%)", name,
                     speeds[name].second, speeds[name].first,
                     100 * (speeds[name].second / speeds[name].first - 1)));
  }
  for (const Json& name : published.at("fitted", "file").as_array("fitted"))
    CHECK_FALSE(speeds.contains(name.as_string("name")));
  for (const Json& pair : published.at("ratios", "file").as_array("ratios")) {
    const std::string &a = pair.as_array("pair")[0].as_string("name"),
                      &b = pair.as_array("pair")[1].as_string("name");
    const double theirs = speeds.at(a).first / speeds.at(b).first,
                 ours = speeds.at(a).second / speeds.at(b).second;
    INFO(a << " / " << b << ": published " << theirs << ", planned " << ours);
    CHECK(std::abs(ours / theirs - 1) < 0.10);
  }
}
