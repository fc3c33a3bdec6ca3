#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

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
    run_generate_command({.checkpoint = folder.path(), .prompt = "what", .max_tokens = 8, .dtype = dtype},
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
  CHECK_THAT(refusal_of_generate(folder, "bfloat16"),
             Contains("[memory] the model with ") && Contains(" tokens needs ") &&
                 Contains(" GiB on cpu, but only ") && Contains(" are free for this rank; largest items: ") &&
                 Contains(". Choose --dtype float32, for which the weights need no copy in bfloat16, or a "));
  CHECK_THAT(refusal_of_generate(folder, "float32"), Contains(". Choose a device with more memory"));
  CHECK_THAT(refusal_of_eval(folder, "float32"),
             Contains("[memory] the model with a pass of questions needs ") &&
                 Contains(". Choose a device with more memory"));
}
