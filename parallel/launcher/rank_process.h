#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/io/descriptor.h"

namespace ottava {

/// A process that was started as a rank. Its standard input is empty.
struct RankProcess {
  pid_t id = 0;
  Descriptor output, errors;  ///< read ends of its standard output and error, non-blocking
  Descriptor account;         ///< read end of what it writes into the file that OTTAVA_ACCOUNTS names
};

/// Starts `program` with `arguments` (the first is its argv[0]), `environment` ("NAME=value") and
/// OTTAVA_ACCOUNTS. It has a process group of its own, so that the terminal's signals reach only the caller,
/// and begins with the stop signals (stop_signal_set.h) blocked, so that none is lost before the program
/// listens. The kernel kills it when the calling thread ends, for whatever reason. Throws Error, also if
/// the program cannot be executed.
RankProcess start_rank(const std::string& program, const std::vector<std::string>& arguments,
                       std::vector<std::string> environment);

}  // namespace ottava
