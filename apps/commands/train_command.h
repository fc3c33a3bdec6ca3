#pragma once

#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava train CONFIG [--section.key value ...] [--redecide]`. Returns the exit code: 0 if training is
/// complete, has nothing to do, or was stopped by a signal (after saving, if it saves). A single process
/// throws whatever goes wrong; among several, each rank logs it and the code is 1.
struct TrainCommand {
  std::string file;
  std::vector<std::string> overrides;
  bool redecide = false;  ///< decisions of the checkpoint are not followed
};
int run_train_command(const TrainCommand& command);

/// Adds `ottava train`.
void add_train_command(Command& commands);

}  // namespace ottava
