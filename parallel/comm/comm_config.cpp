#include "parallel/comm/comm_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, CommConfig& c) {
  s.meaning("messages between ranks");
  s.field("init_timeout_seconds", c.init_timeout_seconds, "limit for start-up and the first step")
      .at_least(1)
      .unit("seconds");
  s.field("train_timeout_seconds", c.train_timeout_seconds,
          "limit for every later collective; then the missing rank is named")
      .at_least(1)
      .unit("seconds");
  s.field("backend", c.backend,
          "transport; auto: nccl for GPUs of a build that has it, else what started the ranks: mpi, or tcp")
      .one_of({"auto", "mpi", "tcp", "nccl"});
  s.field("sm_budget", c.sm_budget,
          "of each GPU, kept for collectives that overlap: NCCL takes no more, matrix products are planned "
          "for the rest; 0: both take what they like")
      .range(0, 64)
      .unit("SMs");
  s.field("trace_buf_size", c.trace_buf_size,
          "the last calls between ranks that each rank keeps, and writes when the run fails; 0: none")
      .range(0, 1 << 24)
      .unit("calls");
  s.field("save_traces_folder", c.save_traces_folder,
          "where they are written, below job.dump_folder: one JSON file per rank");
  s.field("save_traces_file_prefix", c.save_traces_file_prefix,
          "beginning of the files' names; rank and .json follow");
  s.foreign("mode", config::Value::of(std::string("default")), "every rank is a process")
      .one_of({"default"})
      .refuse_value("fake_backend", "`ottava plan CONFIG --world-size N` answers for any number of ranks")
      .refuse_value("local_tensor", "`ottava plan CONFIG --world-size N` answers for any number of ranks");
}

}  // namespace ottava
