#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava bench train CONFIG`: runs steps as training does (on a GPU as graphs) and prints tokens/s,
/// utilization (the time that the FLOPs as computed would take at the GEMM peak of their precision, over the
/// time taken), memory, and time per operation, on a GPU from further steps that run operation by operation.
/// Making FP8 operands has a row for each kind of layer ("attention.wqkv.quantize"), one for all weights
/// ("weights.quantize"), and a sum. Nothing stays in job.dump_folder; metrics and traces are not written.
/// Throws ConfigError.
struct BenchCommand {
  std::string file;
  std::vector<std::string> overrides;
  int steps = 5;
  /// "drawn": as training starts. "repeated": a few values of each tensor, repeated, for models whose weights
  /// take longer to draw than the steps take to run.
  std::string weights = "drawn";
  /// Number of steps with an asynchronous checkpoint in flight, alternating with as many without; 0: none.
  /// They are saved below job.dump_folder, in a folder that is removed at the end, after an error too.
  int saves = 0;
};
int run_bench_command(const BenchCommand& command, std::ostream& out);

/// Adds `ottava bench` with its subcommands.
void add_bench_commands(Command& commands);

}  // namespace ottava
