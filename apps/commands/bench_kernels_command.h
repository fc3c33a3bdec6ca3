#pragma once

#include <ostream>
#include <string>

namespace ottava {

class Command;

/// `ottava bench kernels`: each operation alone, with the bytes and FLOPs that it records on `meta`, against
/// what this device does at best: memory-bound ones against the rate of a large copy, attention against the
/// rate of a large product.
struct BenchKernelsCommand {
  enum class Print { table, json };
  std::string device = "auto";  ///< "meta": bytes and FLOPs alone, as on a GPU
  std::string shapes = "8B";    ///< "8B" (two sequences of 8192), or "small"
  double seconds = 0.1;         ///< of each, after one call that is not counted
  Print print = Print::table;
};
/// An operation that fails is printed with its message, and the others run; returns 1 if one failed. Throws
/// ConfigError.
int run_bench_kernels_command(const BenchKernelsCommand& command, std::ostream& out);

/// Adds `kernels` to `ottava bench`.
void add_bench_kernels_command(Command& bench);

}  // namespace ottava
