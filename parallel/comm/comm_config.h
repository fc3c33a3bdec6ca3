#pragma once

#include <cstdint>
#include <string>

#include "core/config/declare.h"

namespace ottava {

/// Section `comm`. What keys mean: comm_config.cpp.
struct CommConfig {
  int64_t init_timeout_seconds = 300, train_timeout_seconds = 100;
  enum class Backend : uint8_t { automatic, mpi, tcp, nccl };
  Backend backend = Backend::automatic;
  int64_t sm_budget = 0;
  int64_t trace_buf_size = 20000;
  std::string save_traces_folder = "comm_traces", save_traces_file_prefix = "rank_";
  /// What else moves tensors, MPI or TCP, was asked for.
  bool excludes_nccl() const { return backend == Backend::mpi || backend == Backend::tcp; }
  bool operator==(const CommConfig&) const = default;
};

void declare(config::Section& s, CommConfig& c);

}  // namespace ottava
