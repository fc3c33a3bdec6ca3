#include <cstdio>
#include <string>
#include <vector>

#include "apps/commands/bench_command.h"
#include "apps/commands/checkpoint_command.h"
#include "apps/commands/command_line.h"
#include "apps/commands/config_command.h"
#include "apps/commands/data_command.h"
#include "apps/commands/generate_command.h"
#include "apps/commands/plan_command.h"
#include "apps/commands/tokenizer_command.h"
#include "apps/commands/train_command.h"

int main(int argc, char** argv) {
  using namespace ottava;
  int code = 0;
  CLI::App app{
      "ottava trains Llama-family language models in FP8, BF16 and FP32, from a laptop to a GPU cluster,\n"
      "from one YAML or TOML file per experiment.",
      "ottava"};
  app.require_subcommand(1);
  app.set_version_flag("--version", OTTAVA_VERSION);
  add_train_command(app, code);
  add_plan_command(app);
  add_bench_commands(app, code);
  add_config_command(app);
  add_tokenizer_commands(app);
  add_data_commands(app);
  add_generate_command(app);
  add_checkpoint_commands(app, code);
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == "help") {  // `ottava help plan` is `ottava plan --help`
    words.erase(words.begin());
    words.push_back("--help");
  }
  try {
    app.parse({words.rbegin(), words.rend()});
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    std::fprintf(stderr, "ottava: [command line] %s\n", command_line_failure(app, e, words).c_str());
    return 1;
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "ottava: %s\n", e.what());
    return 1;
  }
  return code;
}
