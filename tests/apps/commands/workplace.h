#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/launched.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_training.h"

namespace ottava::test {

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A folder with text and a small experiment, in which the program is started.
class Workplace {
 public:
  Workplace() {
    write("text.txt", generated_text(200));
    write("tiny.yaml",
          "model: {dim: 32, n_layers: 2, n_heads: 2, n_kv_heads: 1, ffn_dim: 48, "
          "hf_assets_path: " OTTAVA_SOURCE_DIR
          "/configs/tokenizers/en-2256}\n"
          "training: {dataset_path: text.txt, seq_len: 32, local_batch_size: 2, steps: 6, threads: 1, "
          "dataloader: {num_workers: 1}}\n"
          "job: {dump_folder: out}\n"
          "metrics: {log_freq: 1, peak_tflops_bf16: 1}\n"
          "checkpoint: {enable: true, interval: 3, last_save_model_only: false}\n");
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }
  Outcome run(const std::string& arguments, const std::function<void(int)>& meanwhile = {}) const {
    return run_shell("exec " OTTAVA " " + arguments, meanwhile);
  }
  Outcome run_shell(const std::string& command, const std::function<void(int)>& meanwhile = {}) const {
    return run_command("cd " + folder_.path() + " && " + command, meanwhile);
  }
  /// Expects one clear error before training, and nothing half-written.
  void refuses(const std::string& arguments, const std::vector<std::string>& parts) const {
    INFO("train tiny.yaml " << arguments);
    std::filesystem::remove_all(folder_ / "out");
    const Outcome out = run("train tiny.yaml " + arguments);
    INFO(out.output);
    CHECK(out.exit_code == 1);
    for (const std::string& part : parts) {
      INFO(part);
      CHECK(has(out.output, part));
    }
    const size_t error = out.output.find("ottava: [");
    CHECK(error != std::string::npos);
    CHECK(out.output.find("ottava: [", error + 1) == std::string::npos);
    CHECK_FALSE(has(out.output, "step:  1"));
    if (!std::filesystem::is_directory(folder_ / "out")) return;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "out")) {
      INFO(entry.path().string());
      CHECK(entry.path().filename().string().find("step-") == std::string::npos);
      CHECK(entry.path().extension() != ".tmp");
    }
  }

 private:
  TemporaryFolder folder_;
};

inline std::vector<std::string> steps_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename() != ".lock") names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ottava::test
