#include "core/metrics/metrics_config.h"

#include "core/config/section.h"

namespace ottava {

using config::Value;

void declare(config::Section& s, MetricsConfig& c) {
  s.meaning("what is measured, and where it is written");
  s.field("log_freq", c.log_freq).at_least(1).unit("steps").meaning("steps between log lines");
  s.field("enable_tensorboard", c.enable_tensorboard).meaning("write TensorBoard events");
  s.field("enable_json_lines", c.enable_json_lines).meaning("write <job.dump_folder>/metrics.jsonl");
  s.field("disable_color_printing", c.disable_color_printing).meaning("plain text also on a terminal");
  s.field("save_tb_folder", c.save_tb_folder).meaning("folder of the events, inside job.dump_folder");
  s.field("save_for_all_ranks", c.save_for_all_ranks).meaning("every rank writes metrics, not rank 0 alone");
  s.field("peak_tflops_bf16", c.peak_tflops_bf16)
      .at_least(0)
      .unit("TFLOP/s")
      .meaning("dense BF16 peak of the device; 0: from the table, else measured");
  s.field("peak_tflops_fp8", c.peak_tflops_fp8)
      .at_least(0)
      .unit("TFLOP/s")
      .meaning("dense FP8 peak of the device; 0: from the table, else measured");
  s.foreign("enable_wandb", Value::of(false))
      .refused(
          "Weights & Biases is not supported; metrics.jsonl and TensorBoard events can be imported there");
}

void declare_profiling(config::Section& s) {
  s.meaning("traces of other trainers");
  const char* why = "no trace is written; `ottava bench train` prints the time of each operation";
  s.foreign("enable_profiling", Value::of(false)).noted(why);
  s.foreign("save_traces_folder", Value::of(std::string("profile_traces"))).noted(why);
  s.foreign("profile_freq", Value::of(int64_t{10})).noted(why);
  s.foreign("profiler_active", Value::of(int64_t{1})).noted(why);
  s.foreign("profiler_warmup", Value::of(int64_t{3})).noted(why);
  const char* memory = "memory is planned before step 1, and the plan is printed";
  s.foreign("enable_memory_snapshot", Value::of(false)).noted(memory);
  s.foreign("save_memory_snapshot_folder", Value::of(std::string("memory_snapshot"))).noted(memory);
}

}  // namespace ottava
