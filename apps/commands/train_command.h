#pragma once

#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava train CONFIG [--section.key value ...] [--redecide]`. Returns the exit code: 0 if training is
/// complete, has nothing to do, or was stopped by a signal (after saving, if it saves).
struct TrainCommand {
  std::string file;
  std::vector<std::string> overrides;
  bool redecide = false;  ///< decisions of the checkpoint are not followed
};
int run_train_command(const TrainCommand& command);

/// Adds `ottava train`.
void add_train_command(Command& commands);

}  // namespace ottava
