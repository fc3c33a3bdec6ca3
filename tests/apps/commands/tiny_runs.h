#pragma once

#include <fstream>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/launched.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_training.h"

namespace ottava::test {

/// A folder with a text and a configuration of six steps, tiny.yaml, whose runs write into `out`.
class TinyRuns {
 public:
  TinyRuns() {
    std::ofstream(folder_ / "text.txt") << generated_text(100);
    std::ofstream(folder_ / "tiny.yaml")
        << "model: {dim: 32, n_layers: 1, n_heads: 2, n_kv_heads: 1, ffn_dim: 48, "
           "hf_assets_path: " OTTAVA_SOURCE_DIR
           "/configs/tokenizers/en-2256}\n"
           "training: {dataset_path: text.txt, seq_len: 32, local_batch_size: 2, steps: 6, threads: 1}\n"
           "job: {dump_folder: out}\n"
           "metrics: {log_freq: 1, peak_tflops_bf16: 1}\n"
           "checkpoint: {enable: true, interval: 2, keep_latest_k: 0}\n";
  }
  /// What `ottava train` prints; it must end with `code`.
  std::string train(const std::string& arguments, int code = 0) const {
    const Outcome out =
        run_command("cd " + folder_.path() + " && exec " OTTAVA " train tiny.yaml " + arguments);
    INFO("train tiny.yaml " << arguments << "\n" << out.output);
    CHECK(out.exit_code == code);
    return out.output;
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
};

}  // namespace ottava::test
