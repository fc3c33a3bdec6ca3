#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "apps/commands/eval_command.h"
#include "apps/commands/generate_command.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kModel = OTTAVA_SOURCE_DIR "/tests/golden/evaluate/model";

/// The folder of a model with this width of its feed-forward layers, without weights.
void write_model(const TemporaryFolder& folder, const std::string& width) {
  for (const auto& entry : fs::directory_iterator(kModel))
    if (entry.path().extension() == ".json")
      fs::copy(entry.path(), folder / entry.path().filename().string());
  std::string config = read_file(folder / "config.json");
  const std::string key = "\"intermediate_size\": ";
  const size_t at = config.find(key) + key.size();
  config.replace(at, config.find_first_not_of("0123456789", at) - at, width);
  std::ofstream(folder / "config.json") << config;
}

std::string refusal_of_generate(const TemporaryFolder& folder, const std::string& dtype) {
  return message_of([&] {
    std::ostringstream out;
    run_generate_command({.checkpoint = folder.path(), .prompt = "what", .max_tokens = 8, .dtype = dtype},
                         out, out);
  });
}

std::string refusal_of_eval(const TemporaryFolder& folder, const std::string& dtype) {
  return message_of([&] {
    std::ostringstream out;
    run_eval_command({.model = folder.path(), .tasks = {kGolden + "own.jsonl"}, .dtype = dtype}, out, out);
  });
}

}  // namespace

TEST_CASE("a model whose weights do not fit is refused before they are read") {
  const TemporaryFolder folder;
  write_model(folder, "1099511627776");
  CHECK_THAT(refusal_of_generate(folder, "float32"),
             Contains("[memory] the model with ") && Contains(" tokens needs ") &&
                 Contains(" GiB on cpu, but only ") && Contains(" are free for this rank; largest items: ") &&
                 Contains(". Choose --dtype bfloat16, or a device with more memory"));
  CHECK_THAT(refusal_of_generate(folder, "bfloat16"), Contains(". Choose a device with more memory"));
  CHECK_THAT(refusal_of_eval(folder, "float32"),
             Contains("[memory] the model with a pass of questions needs ") &&
                 Contains(". Choose --dtype bfloat16, or a device with more memory"));
}
