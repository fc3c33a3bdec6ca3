#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava bench train CONFIG`: steps as training does them (on a GPU launched as graphs), then tokens/s,
/// utilization (the time that the FLOPs as computed would take at the GEMM peak of their precision, over the
/// time taken), memory, and time per operation: on a GPU of further steps that run operation by operation.
/// Making FP8 operands is a row of its own for each kind of layer ("attention.wqkv.quantize") and for all
/// weights ("weights.quantize"), and a sum. Nothing stays saved; metrics are not written. Throws ConfigError.
struct BenchCommand {
  std::string file;
  std::vector<std::string> overrides;
  int steps = 5;
  /// "drawn": as training starts. "repeated": a few values of each tensor again and again, for models whose
  /// weights take longer to draw than the steps do.
  std::string weights = "drawn";
  /// Steps with an asynchronous checkpoint in flight, beside as many without, in turn: 0 leaves it out. Saved
  /// below job.dump_folder in a folder that goes with the bench.
  int saves = 0;
};
int run_bench_command(const BenchCommand& command, std::ostream& out);

/// Adds `ottava bench` with its subcommands.
void add_bench_commands(Command& commands);

}  // namespace ottava
