#include "apps/commands/train_command.h"

#include <filesystem>
#include <iostream>

#include "apps/commands/command_line.h"
#include "apps/decide/decide.h"
#include "apps/train/checkpoints.h"
#include "apps/train/launch_session.h"
#include "apps/train/run_lock.h"
#include "apps/train/stop_signals.h"
#include "apps/train/trainer.h"
#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/log.h"
#include "parallel/ranks/agree.h"

namespace ottava {

namespace {

void make_dump_folder(const std::string& folder) {
  if (const std::error_code error = make_writable_folder(folder))
    fail<FileError>("job.dump_folder", "cannot write into {}: {}", folder, error.message());
}

}  // namespace

int run_train_command(const TrainCommand& command) {
  Config config = load_config(command.file, command.overrides);
  require_inputs(config);
  StopSignals signals;
  return run_session(config, [&](Session& session) {
    const bool is_first = session.ranks.is_first();
    RunLock lock;
    fail_together(*session.ranks.control, [&] {
      if (!is_first) return;
      make_dump_folder(config.job.dump_folder);
      lock = RunLock(config.job.dump_folder);
    });
    if (const std::string why = nothing_to_train(config, session.ranks); !why.empty())
      return log::info("{}", why);
    if (is_first) {
      if (config.job.print_config) std::cout << print_config(config) << std::flush;
      if (config.job.save_config_file) {
        write_file_atomically(config.job.in_dump_folder(*config.job.save_config_file), print_config(config));
      }
    }
    settle_decisions(session.experiment, session.ranks, session.device,
                     command.redecide ? DecisionSource::afresh : DecisionSource::checkpoint);
    Trainer trainer(session.experiment, session.ranks, session.device, &signals);
    if (is_first) {
      write_file_atomically(config.job.in_dump_folder("decisions.json"),
                            to_json(trainer.experiment().decisions));
    }
    trainer.run();
  });
}

void add_train_command(Command& commands) {
  auto o = std::make_shared<TrainCommand>();
  commands.experiment("train", "train a model; continues from the newest checkpoint", *o)
      .flag("--redecide", o->redecide, true,
            "decide again what the checkpoint's run had decided (decisions.json)")
      .run([o] { return run_train_command(*o); });
}

}  // namespace ottava
