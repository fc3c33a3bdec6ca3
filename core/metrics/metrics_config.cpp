#include "core/metrics/metrics_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, MetricsConfig& c) {
  s.meaning("what is measured, and where it is written");
  s.field("log_freq", c.log_freq, "steps between log lines").at_least(1).unit("steps");
  s.field("enable_tensorboard", c.enable_tensorboard, "write TensorBoard events");
  s.field("enable_json_lines", c.enable_json_lines, "write <job.dump_folder>/metrics.jsonl");
  s.field("disable_color_printing", c.disable_color_printing, "plain text also on a terminal");
  s.field("save_tb_folder", c.save_tb_folder, "folder of the events, inside job.dump_folder");
  s.field("save_for_all_ranks", c.save_for_all_ranks, "every rank writes metrics, not only rank 0");
  s.field("peak_tflops_bf16", c.peak_tflops_bf16,
          "dense BF16 peak of the device; 0: from the table, else measured")
      .at_least(0)
      .unit("TFLOP/s");
  s.field("peak_tflops_fp8", c.peak_tflops_fp8,
          "dense FP8 peak of the device; 0: from the table, else measured on a GPU that has it, else BF16's")
      .at_least(0)
      .unit("TFLOP/s");
}

}  // namespace ottava
