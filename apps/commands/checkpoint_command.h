#pragma once

#include <iosfwd>
#include <string>

namespace ottava {

class Command;

/// A checkpoint is given as its `step-N` folder, as the folder of a run's checkpoints, or as the run's
/// folder; the latter two mean the newest checkpoint.

/// `ottava checkpoint inspect`: what a checkpoint is, from its manifest and small files; tensors are not
/// read.
struct CheckpointInspectOptions {
  std::string path;
  enum class Tensors { summary, list } tensors = Tensors::summary;
};
/// Throws FileError for a folder that is not a whole checkpoint.
void inspect_checkpoint(const CheckpointInspectOptions& options, std::ostream& out);

/// `ottava checkpoint verify`: reads every byte and compares checksums. Returns true if everything is as it
/// was saved; else prints one line per file or tensor that is not. A last line says the result.
struct CheckpointVerifyOptions {
  std::string path;
};
bool verify_checkpoint(const CheckpointVerifyOptions& options, std::ostream& out);

/// `ottava checkpoint diff A B`: which tensors differ and by how much. HF folders can be compared as well.
/// Returns true if all values are equal.
struct CheckpointDiffOptions {
  std::string a, b;
  int largest = 10;  ///< how many tensors that differ are listed, those that differ most first; 0: all
  enum class What { weights, weights_and_optimizer } what = What::weights_and_optimizer;
};
bool diff_checkpoints(const CheckpointDiffOptions& options, std::ostream& out);

/// Adds `ottava checkpoint` with its subcommands.
void add_checkpoint_commands(Command& commands);

}  // namespace ottava
