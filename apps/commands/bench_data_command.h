#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava bench data CONFIG`: reads the first steps of the training data, as a rank that reads all of it,
/// and says how fast; for a mixture also how much of the time finding each sample's source takes. Trains
/// nothing and writes nothing. Throws ConfigError and what reading throws.
struct BenchDataCommand {
  std::string file;
  std::vector<std::string> overrides;
  int64_t steps = 20;  ///< >= 1
};
int run_bench_data_command(const BenchDataCommand& command, std::ostream& out);

/// Adds `data` to `ottava bench`.
void add_bench_data_command(Command& bench);

}  // namespace ottava
