#include "apps/commands/bench_command.h"
#include "apps/commands/checkpoint_command.h"
#include "apps/commands/command_line.h"
#include "apps/commands/config_command.h"
#include "apps/commands/data_command.h"
#include "apps/commands/generate_command.h"
#include "apps/commands/init_command.h"
#include "apps/commands/plan_command.h"
#include "apps/commands/tokenizer_command.h"
#include "apps/commands/train_command.h"

int main(int argc, char** argv) {
  using namespace ottava;
  CommandLine line(
      "ottava",
      "ottava trains Llama-family language models in FP8, BF16 and FP32, from a laptop to a GPU cluster,\n"
      "from one YAML or TOML file per experiment.",
      OTTAVA_VERSION);
  Command commands = line.commands();
  add_init_command(commands);
  add_train_command(commands);
  add_plan_command(commands);
  add_bench_commands(commands);
  add_config_command(commands);
  add_tokenizer_commands(commands);
  add_data_commands(commands);
  add_generate_command(commands);
  add_checkpoint_commands(commands);
  return line.run({argv + 1, argv + argc});
}
