#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "apps/commands/eval_command.h"
#include "apps/commands/generate_command.h"
#include "apps/devices/too_large.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kModel = OTTAVA_SOURCE_DIR "/tests/golden/evaluate/model",
                  kQuestions = OTTAVA_SOURCE_DIR "/tests/golden/evaluate/own.jsonl";

/// The folder of a model that fits nowhere, without weights.
void write_model(const TemporaryFolder& folder) {
  for (const auto& entry : fs::directory_iterator(kModel))
    if (entry.path().extension() == ".json")
      fs::copy(entry.path(), folder / entry.path().filename().string());
  std::string config = read_file(folder / "config.json");
  for (const auto& [key, value] :
       {std::pair{"\"hidden_size\": ", "1048576"}, {"\"intermediate_size\": ", "2147483648"}}) {
    const size_t at = config.find(key) + std::string_view(key).size();
    config.replace(at, config.find_first_not_of("0123456789", at) - at, value);
  }
  std::ofstream(folder / "config.json") << config;
}

std::string refusal_of_generate(const TemporaryFolder& folder, const std::string& dtype) {
  return message_of([&] {
    std::ostringstream out;
    run_generate_command({.checkpoint = folder.path(), .prompts = {"what"}, .max_tokens = 8, .dtype = dtype},
                         out, out);
  });
}

std::string refusal_of_eval(const TemporaryFolder& folder, const std::string& dtype) {
  return message_of([&] {
    std::ostringstream out;
    run_eval_command({.model = folder.path(), .tasks = {kQuestions}, .dtype = dtype}, out, out);
  });
}

}  // namespace

TEST_CASE("a model whose weights do not fit is refused before they are read") {
  const TemporaryFolder folder;
  write_model(folder);
  const std::string dtype = GENERATE("bfloat16", "float32");
  CHECK_THAT(refusal_of_generate(folder, dtype),
             Contains("[memory] the model with ") && Contains(" tokens needs ") &&
                 Contains(" GiB on cpu, but only ") && Contains(" are free for this rank; largest items: ") &&
                 Contains(". Choose a device with more memory"));
  CHECK_THAT(refusal_of_eval(folder, dtype),
             Contains("[memory] the model with a pass of questions or texts needs ") &&
                 Contains(". Choose a device with more memory"));
}

TEST_CASE("weights that do not fit with their copies are advised to go without them where that is enough") {
  const auto plan_with = [](int64_t copies) {
    MemoryPlan plan;
    plan.persistent = {{.name = "w", .category = MemoryCategory::parameters, .bytes = 400}};
    if (copies > 0)
      plan.persistent.push_back({.name = "w bf16", .category = MemoryCategory::compute, .bytes = copies});
    return plan;
  };
  CHECK_THAT(advice_on_weights(plan_with(200), 500), Contains("--dtype float32"));
  CHECK(advice_on_weights(plan_with(200), 300) == "Choose a device with more memory");
  CHECK(advice_on_weights(plan_with(0), 300) == "Choose a device with more memory");
}
