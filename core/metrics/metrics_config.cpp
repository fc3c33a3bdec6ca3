#include "core/metrics/metrics_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, MetricsConfig& c) {
  s.meaning("metrics and where they are written");
  s.field("log_freq", c.log_freq, "steps between log lines").at_least(1).unit("steps");
  s.field("enable_tensorboard", c.enable_tensorboard, "write metrics as TensorBoard events");
  s.field("enable_json_lines", c.enable_json_lines,
          "write metrics and events as JSON lines to metrics.jsonl and events.jsonl in job.dump_folder, "
          "where the next start sees which validation a stop broke off");
  s.field("disable_color_printing", c.disable_color_printing,
          "print plain text without colors, even on a terminal");
  s.field("save_tb_folder", c.save_tb_folder,
          "folder of the TensorBoard events, inside job.dump_folder unless its path leads elsewhere");
  s.field("save_for_all_ranks", c.save_for_all_ranks, "let every rank write metrics, not only rank 0");
  s.field("peak_tflops_bf16", c.peak_tflops_bf16,
          "peak dense BF16 performance of the device, the base of the reported utilization; 0: from a "
          "built-in table, else measured")
      .at_least(0)
      .unit("TFLOP/s");
  s.field("peak_tflops_fp8", c.peak_tflops_fp8,
          "peak dense FP8 performance of the device; 0: from a built-in table, else measured on a GPU that "
          "has FP8, else that of BF16")
      .at_least(0)
      .unit("TFLOP/s");
}

}  // namespace ottava
