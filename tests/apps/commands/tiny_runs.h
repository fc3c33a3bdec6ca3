#pragma once

#include <string>

#include "tests/apps/commands/workplace.h"

namespace ottava::test {

/// A workplace whose configuration is of six steps, each second of which is saved and kept.
class TinyRuns : public Workplace {
 public:
  TinyRuns() {
    write("text.txt", generated_text(100));
    write("tiny.yaml",
          "model: {dim: 32, n_layers: 1, n_heads: 2, n_kv_heads: 1, ffn_dim: 48, "
          "hf_assets_path: " OTTAVA_SOURCE_DIR
          "/configs/tokenizers/en-2256}\n"
          "training: {dataset_path: text.txt, seq_len: 32, local_batch_size: 2, steps: 6, threads: 1}\n"
          "job: {dump_folder: out}\n"
          "metrics: {log_freq: 1, peak_tflops_bf16: 1}\n"
          "checkpoint: {enable: true, interval: 2, keep_latest_k: 0}\n");
  }
  /// What `ottava train` prints; it must end with `code`.
  std::string train(const std::string& arguments, int code = 0) const {
    const Outcome out = run("train tiny.yaml " + arguments);
    INFO("train tiny.yaml " << arguments << "\n" << out.output);
    CHECK(out.exit_code == code);
    return out.output;
  }
};

}  // namespace ottava::test
