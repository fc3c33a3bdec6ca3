#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

/// `ottava bench train CONFIG`: steps as training does them, then tokens/s, time per operation and
/// utilization: the time that the FLOPs as computed would take at the measured GEMM rate of their precision,
/// over the time taken. Making FP8 operands is a row of its own for each kind of layer
/// ("attention.wqkv.quantize") and for all weights ("weights.quantize"), and a sum. Nothing is saved; metrics
/// are not written.
struct BenchCommand {
  std::string file;
  std::vector<std::string> overrides;
  int steps = 5;
};
int run_bench_command(const BenchCommand& command, std::ostream& out);

}  // namespace ottava
