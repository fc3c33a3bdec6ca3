#include <sys/prctl.h>

#include <csignal>
#include <span>
#include <string_view>

#include "apps/commands/bench_command.h"
#include "apps/commands/checkpoint_command.h"
#include "apps/commands/command_line.h"
#include "apps/commands/config_command.h"
#include "apps/commands/data_command.h"
#include "apps/commands/eval_command.h"
#include "apps/commands/generate_command.h"
#include "apps/commands/init_command.h"
#include "apps/commands/launch_command.h"
#include "apps/commands/plan_command.h"
#include "apps/commands/report_command.h"
#include "apps/commands/tokenizer_command.h"
#include "apps/commands/trace_command.h"
#include "apps/commands/train_command.h"
#include "apps/openmp_start.h"
#include "apps/standard_streams.h"
#include "core/memory/malloc_arenas.h"
#include "core/threads/parallel_for.h"
#include "parallel/launcher/stop_signal_set.h"

namespace {

// What follows -- is another program's.
bool asks_for_help(std::span<char* const> words) {
  for (const std::string_view word : words) {
    if (word == "--") break;
    if (word == "--help" || word == "-h") return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ottava;
  // This comes first, so that a signal that arrives while the program starts waits for the thread that
  // listens. Ranks of other commands inherit their launcher's blocked signals; these are unblocked here.
  const std::string_view name = argc > 1 ? argv[1] : "";
  const sigset_t stop_signals = stop_signal_set();
  const bool saves_when_stopped =
      (name == "train" || name == "launch") && !asks_for_help({argv + 2, argv + argc});
  ::sigprocmask(saves_when_stopped ? SIG_BLOCK : SIG_UNBLOCK, &stop_signals, nullptr);
  // Ctrl-C ends `tee` first: a line that nobody reads any more must not end the run before it has saved.
  ::signal(SIGPIPE, saves_when_stopped ? SIG_IGN : SIG_DFL);
  // A file past the shell's limit (ulimit -f) is then an error of writing, which names the file.
  ::signal(SIGXFSZ, SIG_IGN);
  open_standard_streams();
  settle_openmp(argv);
  share_malloc_arena();
  // Of ranks, which their launcher starts through /proc/self/exe, ps and top would show "exe".
  ::prctl(PR_SET_NAME, "ottava");
  set_parallel_threads(parallel_threads());
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
  add_trace_command(commands);
  add_report_command(commands);
  add_launch_command(commands);
  add_config_command(commands);
  add_tokenizer_commands(commands);
  add_data_commands(commands);
  add_generate_command(commands);
  add_eval_command(commands);
  add_checkpoint_commands(commands);
  StandardOutput output;
  const int code = line.run({argv + 1, argv + argc});
  // A run has written its files, and has ended well even if nobody reads its lines.
  return saves_when_stopped ? code : output.written(code);
}
