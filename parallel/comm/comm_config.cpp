#include "parallel/comm/comm_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, CommConfig& c) {
  constexpr double kMostSeconds = 1e8;  // far longer, and nanoseconds leave 64 bits
  s.meaning("communication between ranks");
  s.field("init_timeout_seconds", c.init_timeout_seconds, "timeout of startup and of the first step")
      .range(1, kMostSeconds)
      .unit("seconds");
  s.field("train_timeout_seconds", c.train_timeout_seconds,
          "timeout of every later collective, or micro-batch that is a CUDA graph, not counting time for "
          "which the job is suspended; the error names the rank or connection at fault")
      .range(1, kMostSeconds)
      .unit("seconds");
  using enum CommConfig::Backend;
  s.choice(
      "backend", c.backend, {{"auto", automatic}, {"mpi", mpi}, {"tcp", tcp}, {"nccl", nccl}},
      "communication library; auto: nccl on GPUs if built in, else mpi or tcp, by what started the ranks");
  s.field("sm_budget", c.sm_budget,
          "SMs of each GPU reserved for collectives that overlap with computation; no call of NCCL's uses "
          "more (those of tensor, context and pipeline parallel may run beside others), and matrix products "
          "are planned for the rest; 0: no limit on either")
      .range(0, 64)
      .unit("SMs");
  s.field("trace_buf_size", c.trace_buf_size,
          "number of latest communication calls that each rank keeps; traces (section profiling) show those "
          "of their steps, and if the run fails they are written to a file; 0: none")
      .range(0, 1 << 24)
      .unit("calls");
  s.field("save_traces_folder", c.save_traces_folder,
          "folder of these records, with one JSON file per rank, inside job.dump_folder unless its path "
          "leads elsewhere");
  s.field("save_traces_file_prefix", c.save_traces_file_prefix,
          "prefix of their file names, followed by the rank and .json");
  s.foreign("mode", config::Value::of(std::string("default")), "how ranks run; every rank is a process")
      .one_of({"default"})
      .refuse_value("fake_backend",
                    "run `ottava plan CONFIG --world-size N` instead, for any number of ranks")
      .refuse_value("local_tensor",
                    "run `ottava plan CONFIG --world-size N` instead, for any number of ranks");
}

}  // namespace ottava
