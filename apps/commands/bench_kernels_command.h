#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava bench kernels [CONFIG]`: times every distinct operation of a recorded training step of the
/// configuration (rank 0, the fewest ranks), by itself, on training.device. It prints the calls, bytes and
/// FLOPs that the step recorded, and compares with the best the device does (a large copy, and for operations
/// that multiply a large bf16 product) and with the time that `ottava plan` has for the operation. On a GPU
/// with cuDNN its attention is timed as well.
struct BenchKernelsCommand {
  enum class Work { measure, count };
  std::string file;
  std::vector<std::string> overrides;
  std::string only = "*";  ///< glob over the operations' names
  double seconds = 20;     ///< of measuring; an operation gets at most 0.1 s
  Work work = Work::measure;
  std::string json;  ///< file for programs; empty: none
};
/// Prints each line as soon as it is known. An operation that fails is printed with its message, and the
/// others still run; those for which no time is left are counted at the end. Returns 1 if one failed. Throws
/// ConfigError, also if `only` matches no operation.
int run_bench_kernels_command(const BenchKernelsCommand& command, std::ostream& out);

/// Adds `kernels` to `ottava bench`.
void add_bench_kernels_command(Command& bench);

}  // namespace ottava
