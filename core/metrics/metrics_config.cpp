#include "core/metrics/metrics_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, MetricsConfig& c) {
  s.meaning("what is measured, and where it is written");
  s.field("log_freq", c.log_freq).at_least(1).unit("steps").meaning("steps between log lines");
  s.field("enable_tensorboard", c.enable_tensorboard).meaning("write TensorBoard events");
  s.field("enable_json_lines", c.enable_json_lines).meaning("write <job.dump_folder>/metrics.jsonl");
  s.field("disable_color_printing", c.disable_color_printing).meaning("plain text also on a terminal");
  s.field("save_tb_folder", c.save_tb_folder).meaning("folder of the events, inside job.dump_folder");
  s.field("save_for_all_ranks", c.save_for_all_ranks).meaning("every rank writes metrics, not only rank 0");
  s.field("peak_tflops_bf16", c.peak_tflops_bf16)
      .at_least(0)
      .unit("TFLOP/s")
      .meaning("dense BF16 peak of the device; 0: from the table, else measured");
  s.field("peak_tflops_fp8", c.peak_tflops_fp8)
      .at_least(0)
      .unit("TFLOP/s")
      .meaning("dense FP8 peak of the device; 0: from the table, else measured on a GPU that has it, else BF16's");
}

}  // namespace ottava
