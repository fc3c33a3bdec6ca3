#include "apps/commands/train_command.h"

#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <string_view>
#include <vector>

#include "apps/checkpoints/steps_to_load.h"
#include "apps/commands/command_line.h"
#include "apps/config/outputs.h"
#include "apps/decide/decide.h"
#include "apps/train/launch_session.h"
#include "apps/train/run_lock.h"
#include "apps/train/stop_signals.h"
#include "apps/train/trainer.h"
#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/attempts.h"
#include "core/io/folder.h"
#include "core/io/system_failure.h"
#include "core/log.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/patience.h"
#include "parallel/ranks/launch.h"

namespace ottava {

namespace {

namespace fs = std::filesystem;

RunLock lock_of(std::string_view key, const std::string& folder, const LockPatience& patience) {
  return in_three_attempts({.complaint = fmt::format("{} {} could not be used", key, folder)}, [&] {
    if (const std::string reason = make_writable_folder(folder); !reason.empty())
      fail<FileError>(key, "cannot write into {}: {}", folder, reason);
    return RunLock(key, folder, patience);
  });
}

bool is_same_folder(const std::string& a, const std::string& b) {
  const auto resolved = [](const std::string& path) {
    return in_three_attempts({.complaint = fmt::format("{} could not be looked at", path)}, [&] {
      std::error_code error;
      fs::path full = fs::weakly_canonical(path, error);
      if (error) fail_for_system(error.value(), "job", "cannot look at " + path);
      return full;
    });
  };
  return resolved(a) == resolved(b);
}

/// Locks the run's folders: also that of its checkpoints, which runs with other dump folders may see.
std::vector<RunLock> locks_of(const Config& c, const StopSignals& signals) {
  const LockPatience patience{.is_over = [&] { return signals.received() != 0; }};
  std::vector<RunLock> locks;
  locks.push_back(lock_of("job.dump_folder", c.job.dump_folder, patience));
  const std::string folder = c.job.in_dump_folder(c.checkpoint.folder);
  if (c.checkpoint.enable && !c.checkpoint.load_only && !is_same_folder(folder, c.job.dump_folder))
    locks.push_back(lock_of("checkpoint.folder", folder, patience));
  return locks;
}

void write_in_three_attempts(std::string_view where, const std::string& file, const std::string& text) {
  in_three_attempts({.complaint = fmt::format("{} could not be written", file)}, [&] {
    require_folder(where, fs::path(file).parent_path().string());
    write_file_atomically(file, text);
  });
}

/// Of which the others wait for the end, and hear if it fails.
void on_first_rank(RankGroups& ranks, std::string_view where, const std::function<void()>& work) {
  const Patience patience(*ranks.control);
  fail_together(*ranks.control, where, [&] {
    if (ranks.is_first()) work();
  });
}

/// What killed ranks of earlier runs left. To be called with the locks held, while no rank writes.
void remove_leftovers(const Config& c) {
  for (const std::string& folder : output_folders(c))
    for (const std::string& path : remove_half_written(folder))
      log::info("Removing {}, which a killed process left half written", path);
}

}  // namespace

int run_train_command(const TrainCommand& command) {
  const std::optional<Config> loaded = load_session_config(command.file, command.overrides);
  if (!loaded) return 1;
  const Config& config = *loaded;
  // Several ranks look once they have met.
  const auto check_inputs = [&] { require_inputs(config); };
  if (detect_launch().world_size == 1) check_inputs();
  log::set_rank(rank_in_log());  // for the lines about signals too
  StopSignals signals;
  return run_session(
      config,
      [&](Session& session) {
        std::vector<RunLock> locks;
        on_first_rank(session.ranks, "job", [&] {
          locks = locks_of(config, signals);
          remove_leftovers(config);
        });
        // The end of epochs is known only once the trainer has counted the data.
        if (!config.training.epochs) {
          if (const std::string why = nothing_to_train(config, session.ranks); !why.empty())
            return log::info("{}", why);
        }
        check_steps_to_load(session.experiment, session.ranks);
        on_first_rank(session.ranks, "job", [&] {
          if (config.job.print_config) std::cout << print_config(config) << std::flush;
          if (!config.job.save_config_file) return;
          const std::string file = config.job.in_dump_folder(*config.job.save_config_file);
          write_in_three_attempts("job.save_config_file", file, print_config(config));
        });
        settle_decisions(session.experiment, session.ranks, session.device,
                         command.redecide ? DecisionSource::afresh : DecisionSource::checkpoint);
        std::optional<Trainer> trainer;
        try {
          trainer.emplace(session.experiment, session.ranks, session.device, &signals);
        } catch (const NothingToTrain& nothing) {
          return log::info("{}", nothing.why);
        }
        on_first_rank(session.ranks, "decisions", [&] {
          write_in_three_attempts("decisions", trainer->record_folder() + "/decisions.json",
                                  to_json(trainer->experiment().decisions));
        });
        trainer->run([&] {
          for (RunLock& lock : locks) lock.warn_if_gone();
        });
      },
      &signals, check_inputs);
}

void add_train_command(Command& commands) {
  auto o = std::make_shared<TrainCommand>();
  commands.experiment("train", "train a model, resuming from the newest checkpoint if there is one", *o)
      .flag("--redecide", o->redecide, true,
            "repeat the measurements and decisions of the checkpoint's run (decisions.json) instead of "
            "reusing them")
      .run([o] { return run_train_command(*o); });
}

}  // namespace ottava
