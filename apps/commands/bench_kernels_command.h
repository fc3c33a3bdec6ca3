#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava bench kernels [CONFIG]`: every distinct operation of a recorded training step of the configuration
/// (rank 0, the fewest ranks), by itself on training.device, with the calls, bytes and FLOPs that the step
/// recorded, against what the device does at best: a large copy, and a large bf16 product for operations that
/// multiply, and the time that `ottava plan` has for it. On a GPU with cuDNN its attention as well.
struct BenchKernelsCommand {
  enum class Work { measure, count };
  std::string file;
  std::vector<std::string> overrides;
  std::string only = "*";  ///< glob over the operations' names
  double seconds = 20;     ///< of measuring; an operation gets 0.1 of them at most
  Work work = Work::measure;
  std::string json;  ///< file for programs; empty: none
};
/// Prints each line when it is known. An operation that fails is printed with its message, and the others
/// run; those for which no time is left are counted at the end. Returns 1 if one failed. Throws ConfigError,
/// also where no operation is called so.
int run_bench_kernels_command(const BenchKernelsCommand& command, std::ostream& out);

/// Adds `kernels` to `ottava bench`.
void add_bench_kernels_command(Command& bench);

}  // namespace ottava
